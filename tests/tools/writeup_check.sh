#!/bin/sh
# writeup_check.sh [-l] [slow|all] [BUILD] -- runs the commands of WRITEUP.md's figures and compares. make writeup-check SLOW=1
#
# A figure's command is in a Markdown comment, on its own line, before the paragraph, list item, table or fenced text that
# holds the figure:
#
#     <!-- figures: COMMAND -->
#     <!-- figures 5%: COMMAND -->              each figure may differ by this much: a time, or a ratio of times
#     <!-- figures slow 5%: COMMAND -->         takes minutes, or the whole machine; runs only with slow
#
# COMMAND is a shell command that runs in the tree's root. The text must have the numbers of its output in the same order; other
# numbers may stand between them. Several comments may precede one text. A command may use
#
#     $B       the build folder           $T       a folder for files that a later command reads
#     $xeon $avx2 $epyc                   pages of make bench
#     cells PAGE COLUMN,... ROW...        cells of the tables of a Markdown page; ROW: its first cell, or FIRST/SECOND...
#     gflop PAGE ROW..., limits PAGE ROW...   what the products of a training step are, and their ms at the page's roof
#     ask OPTION...                       fsdp_train, without starting ranks
#     held COMMAND...                     builds $B/avx2 and runs the command with products that are held to AVX2
#
# -l lists the commands. Prints a row for each: text, figures, largest difference, verdict, seconds; then "N passed, N failed".
set -u
cd "$(dirname "$0")/../.." || exit 2
list='' wanted=quick
[ "${1:-}" != -l ] || { list=1 && shift; }
case ${1:-} in slow | all) wanted=$1 && shift ;; esac
export B="${1:-${BUILD:-build}}"
doc=${WRITEUP:-WRITEUP.md}
dir=$(mktemp -d "${TMPDIR:-/tmp}/fsdp-writeup.XXXXXX")
trap 'rm -rf "$dir"' EXIT
trap 'exit 130' INT TERM HUP

# Each marker becomes N.cmd, N.band, N.tier, N.title (the heading above) and N.text.
awk -v dir="$dir" '
    function done(    i) { for (i = first; i <= n && begun; i++) close(dir "/" i ".text"); if (begun) { first = n + 1; text = begun = 0 } }
    /^ *<!-- figures.*: .* -->$/ {
        done(); n++; if (!text) first = n
        head = $0; sub(/^ *<!-- figures */, "", head)
        mode = head; sub(/: .*/, "", mode); sub(/^[^:]*: /, "", head); sub(/ -->$/, "", head)
        if (head == "" || mode !~ /^(slow)? ?([0-9.]+%)?$/) { print FILENAME ":" FNR ": not understood: " $0; bad = 1 }
        print head >(dir "/" n ".cmd"); print mode ~ /slow/ ? "slow" : "quick" >(dir "/" n ".tier")
        sub(/slow */, "", mode); sub(/%/, "", mode); print mode == "" ? 0 : mode >(dir "/" n ".band")
        print title >(dir "/" n ".title")
        text = 1; fence = 0
        next
    }
    /^#+ / { title = $0; sub(/^#+ */, "", title); done() }
    !text { next }
    /^ *```/ { fence = !fence; begun = 1; if (!fence) done(); next }
    !fence && begun && (/^ *$/ || /^ *[-*] /) { done(); next }
    !/^ *$/ { begun = 1; for (i = first; i <= n; i++) print >(dir "/" i ".text") }
    END { print n + 0 >(dir "/n"); exit bad }' "$doc" || exit 1
n=$(cat "$dir/n")
if [ -n "$list" ]; then
    for i in $(seq "$n"); do
        printf '%s\n' "$(cat "$dir/$i.title") [$(cat "$dir/$i.tier"), $(cat "$dir/$i.band")%]: $(cat "$dir/$i.cmd")"
    done
    exit 0
fi

# compare BAND OUTPUT TEXT -- looks for each number of the output in the text; prints "FIGURES WORST PROBLEM"
compare() {
    awk -v band="$1" '
        # numbers LINE -- puts numbers into list[1..], without the digits of words such as h.5, bf16 or 124m
        function numbers(line, list,    k, word) {
            gsub(/[^0-9A-Za-z_.+-]/, " ", line)
            k = 0
            for (split(line, word, " "); (++k) in word; ) {
                sub(/[.]$/, "", word[k])
                if (word[k] ~ /^[-+]?[0-9]+([.][0-9]+)?(e[-+]?[0-9]+)?$/)
                    list[++n_found] = word[k]
            }
        }
        FNR == 1 { file++ }
        { n_found = file == 1 ? n_got : n_text; if (file == 1) { numbers($0, got); n_got = n_found } else { numbers($0, said); n_text = n_found } }
        END {
            at = 1
            for (i = 1; i <= n_got; i++) {
                for (j = at; j <= n_text; j++) {
                    d = got[i] == said[j] ? 0 : said[j] == 0 ? 1e9 : 100 * (got[i] / said[j] - 1)
                    d = d < 0 ? -d : d
                    if (d <= band + 1e-9) break
                }
                if (j > n_text) { problem = "no " got[i] " within " band "% in what is left of the text, from figure " at " (" said[at] ")"; break }
                worst = d > worst ? d : worst
                at = j + 1
            }
            if (!n_got) problem = "the command prints no number"
            printf "%d %.1f %s\n", n_got, worst, problem
        }' "$2" "$3"
}

cat >"$dir/words" <<'WORDS'
xeon=tests/bench/results/intel-xeon-2-cores.md avx2=tests/bench/results/intel-xeon-avx2-2-cores.md
epyc=tests/bench/results/amd-epyc-avx2-2-cores-llama.md
zen5=tests/bench/results/amd-epyc-zen5-2-cores.md zen5v=tests/bench/results/amd-epyc-zen5-avx2-2-cores.md
amx=tests/bench/results/intel-xeon-amx-2-cores.md zen3=tests/bench/results/amd-epyc-zen3-2-cores.md
ask() { "$B/fsdp_train" "$@"; }
held() { make -s BUILD="$B/avx2" MARCH=-march=x86-64-v3 all >&2 && ONEDNN_MAX_CPU_ISA=AVX2 "$@"; }
cells() {
    page=$1 columns=$2
    shift 2
    for row in "$@"; do
        awk -F ' *[|] *' -v row="$row" -v columns="$columns" '
            BEGIN { n = split(row, w, "/") }
            { is = NF > 2; for (i = 1; i <= n; i++) is = is && $(i + 1) == w[i] }
            is { for (i = 1; i <= split(columns, c, ","); i++) print $(c[i] + 1); found = 1; exit }
            END { exit !found }' "$page" || { echo "$page has no row $row" >&2 && return 1; }
    done
}
parts() { # of the table of what stands between a step and its limit
    awk -F ' *[|] *' 'NF == 12' "$1" >"$T/parts"
    cells "$T/parts" "$2" "$3"
}
limit=''
gflop() {
    page=$1
    shift
    for row; do
        awk -F ' *[|] *' -v row="$row" -v limit="$limit" '
            /^- roof, (multiply|.*products)/ { n = split($0, w, " "); if (/products/) bf16 = w[n - 1]; else fp32 = w[n - 2] }
            $2 == row && NF > 15 { x = $5 * $10 / 1000; print limit ? 1000 * x / (row ~ /bf16/ && bf16 > fp32 ? bf16 : fp32) : x; exit }' "$page"
    done
}
limits() (
    limit=1
    gflop "$@"
)
WORDS
export T="$dir"
passed=0 failed=0
printf '| %-45s | figures | band %% | worst %% | seconds | |\n|---|---:|---:|---:|---:|---|\n' 'text'
for i in $(seq "$n"); do
    tier=$(cat "$dir/$i.tier") band=$(cat "$dir/$i.band") problem=''
    [ "$wanted" = all ] || [ "$wanted" = "$tier" ] || continue
    since=$(date +%s)
    sh -c "$(cat "$dir/words" "$dir/$i.cmd")" >"$dir/$i.out" 2>"$dir/$i.err" </dev/null || problem="exit status $?: $(tail -1 "$dir/$i.err")"
    [ -e "$dir/$i.text" ] || problem='no text follows the command'
    [ -n "$problem" ] || { compare "$band" "$dir/$i.out" "$dir/$i.text" >"$dir/$i.verdict" && read -r figures worst problem <"$dir/$i.verdict"; }
    verdict=PASS
    [ -z "$problem" ] || verdict=FAIL
    [ $verdict = FAIL ] && failed=$((failed + 1)) || passed=$((passed + 1))
    printf '| %-45.45s | %d | %s | %s | %d | %s |\n' "$(cat "$dir/$i.title")" "${figures:-0}" "$band" "${worst:-}" $(($(date +%s) - since)) $verdict
    [ -z "$problem" ] || printf 'FAIL writeup: %s: %s\n     command: %s\n' "$(cat "$dir/$i.title")" "$problem" "$(cat "$dir/$i.cmd")"
done
echo "$passed passed, $failed failed"
[ $failed -eq 0 ] && [ $passed -gt 0 ]
