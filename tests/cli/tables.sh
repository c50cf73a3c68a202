#!/bin/bash
# tables.sh [BUILD [full]] -- checks tests/bench/tables.sh. WRITEUP.md shows what it prints. Its commands, as printed, plan the
# bytes of closed forms, computed here from the models' shapes. What is said to explain a difference explains it.
# full: also the runs, which must agree in every digit.
#
# A unit of `slots` elements has P = 32 W ceil(slots / (32 W)). Units: the root (embedding, norm, head) and the blocks; with
# --wrap sub-block: the embedding, both halves of each block, and the head with the norm. A step gathers each unit twice (the
# root of blocks once) and the W losses, and reduces each unit once, in fp32. At one time the root and two blocks are gathered,
# or the largest pair of neighbouring units. DDP reduces all P as one unit, and gathers the sums.
. "$(dirname "$0")/lib.sh"
cli_start "$@"

# shown RUNS -- table rows in WRITEUP.md's section. 1: of the table with "sum of parameters", 0: of the others
shown() {
    awk -v runs="$1" '/^##/ { inside = /^### Published tables/ } !inside { next }
        !/^\|/ { of_runs = 0 } /^\|.*sum of parameters/ { of_runs = 1 } /^\|/ && of_runs == runs' WRITEUP.md
}

# same_rows RUNS PRINTED -- prints a problem, or nothing
same_rows() {
    shown "$1" >"$work/shown"
    grep '^|' "$2" >"$work/printed"
    cmp -s "$work/shown" "$work/printed" || echo "differs: $(diff "$work/shown" "$work/printed" | sed -n 2p)"
}

bad=''
tests/bench/tables.sh "$build" plans >"$work/plans" 2>"$work/err" || bad="exit status $?: $(head -1 "$work/err")"
judge 'tables: the plans are made' "$bad"
judge 'tables: the rows of WRITEUP.md are what it prints' "$(same_rows 0 "$work/plans")"

# In a row that ends "..., and theirs holds 0.06 of angles too: 9.48", 9.48 must be the published figure
judge "tables: what FSDPToys' program holds beside ours makes its figures" "$(awk -F' [|] ' '
    $2 == "allocated" { rows++; sum = $5; gsub(/.*: | [|]$/, "", sum); if (sum + 0 != $3 + 0) print "row " rows ": got " sum ", expected " $3 }
    END { if (rows != 8) print "got " rows + 0 " rows, expected 8" }' "$work/plans")"

# check COMMAND -- runs the plan and compares it with the closed forms
check() {
    command=$1
    set -- ${command#build/fsdp_train}
    "$build/fsdp_train" "$@" >"$work/plan" 2>&1
    form=fsdp wrap=block p=4 W=1 host=none
    while [ $# -gt 1 ]; do
        case $1 in
        --size) size=$2 ;;
        --plan-ranks) W=$2 ;;
        --parallel) form=$2 ;;
        --wrap) wrap=$2 ;;
        --param-dtype) p=2 ;;
        --optimizer-offload | --cpu-offload) host=${1#--} ;;
        esac
        shift
    done
    case $1 in --optimizer-offload | --cpu-offload) host=${1#--} ;; esac
    judge "tables: $command" "$(awk -v size="$size" -v W="$W" -v form="$form" -v wrap="$wrap" -v p="$p" -v host="$host" '
        function up(n, to) { return to * int((n + to - 1) / to) }
        function P(slots) { return up(slots, 32 * W) }
        function expect(name, value) {
            if (!(name in got) && value == 0) return
            if (sprintf("%.0f", got[name]) != sprintf("%.0f", value))
                printf "%s: got %.0f, expected %.0f; ", name, got[name], value
        }
        /^  all-gather|^  reduce-scatter/ { got[$1] = $4; next }
        /^  [a-z]+(_[a-z]+)? / { got[$1] = $2 }
        END {
            if (size == "llama2-7b") { L = 32; C = 4096; F = 11008; V = 32000; kv = C }
            if (size == "llama2-70b") { L = 80; C = 8192; F = 28672; V = 32000; kv = 8 * 128 }
            if (size == "cs336-xl") { L = 48; C = 1600; F = 6400; V = 50257; kv = C }
            attn = C + 2 * C * C + 2 * C * kv; mlp = C + 3 * C * F
            root = P(2 * V * C + C); block = P(attn + mlp)
            all = root + L * block; twice = 2 * all - root; at_once = root + 2 * block
            if (wrap == "sub-block") {
                all = P(V * C) + L * (P(attn) + P(mlp)) + P(V * C + C)
                twice = 2 * all; at_once = P(V * C + C) + P(mlp)
            }
            if (form != "fsdp") all = 2 * V * C + C + L * (attn + mlp)
            own = form == "fsdp" ? all / W : all
            sums = P(all) / W
            expect("params_shard", host == "cpu-offload" ? 0 : 4 * own)
            expect("optimizer", host == "none" ? 8 * own : 2 * 32 * 1024 * 1024)
            if (form == "fsdp") {
                if (host != "cpu-offload") expect("grads_shard", 4 * own)
                expect("params_full", p * at_once)
                expect("grads_full", 4 * at_once)
                expect("all-gather", (W - 1) * (p * twice / W + 4))
                expect("reduce-scatter", (W - 1) * 4 * own)
            } else {
                expect("grads_full", 4 * (form == "single" ? all : P(all)))
                expect("params_full", p == 2 ? 2 * all : 0)
                expect("all-gather", (W - 1) * (4 * sums + 4))
                expect("reduce-scatter", (W - 1) * 4 * sums)
            }
        }' "$work/plan")"
}

# The commands as printed: the indented line above a table, with the options in backquotes of each row.
awk '/^    build/ { command = $0; sub(/ OPTIONS$/, "", command); sub(/^ */, "", command); first = 1 }
    /^[|] (`|  *[|])/ && ($0 ~ /`/ || first) {
        options = ""
        if (match($0, /^[|] `[^`]*`/)) options = " " substr($0, 4, RLENGTH - 4)
        print command options; first = 0
    }' "$work/plans" >"$work/commands"
[ "$(wc -l <"$work/commands")" -eq 15 ] || judge 'commands' "got $(wc -l <"$work/commands"), expected 15"
while IFS= read -r line; do check "$line"; done <"$work/commands"

bad=''
tests/bench/tables.sh "$build" plan >"$work/err" 2>"$work/err"
[ $? -eq 2 ] && grep -q "got 'plan', expected" "$work/err" && grep -q '^HINT: ' "$work/err" || bad="$(head -1 "$work/err")"
judge 'tables: a wrong part is refused' "$bad"

if [ "${2:-}" = full ]; then
    bad=''
    tests/bench/tables.sh "$build" run >"$work/run" 2>&1 || bad="exit status $?: $(tail -1 "$work/run")"
    judge 'tables: six runs of 1 to 8 ranks have the same losses and weights' "$bad"
    judge "tables: WRITEUP.md's losses and sums are what it prints" "$(same_rows 1 "$work/run")"
fi
cli_end
