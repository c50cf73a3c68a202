#!/bin/bash
# grade_all.sh -- grade all trees in a folder side by side, with submission.sh, and write one table.
#
#   tests/grade/grade_all.sh DIR OUT BUILD [ARGUMENTS OF submission.sh]
#
# DIR has a folder or an archive (tar, also compressed; zip if there is unzip) for each submission. OUT, a new or an empty
# folder, gets a folder for each, and grades.csv: its columns are the name in DIR, whether there is a grade, the points, the possible
# points, the points of each lab and task, the kind of confinement, the numbers of taken and refused files, and, if there is no grade,
# why. AT_ONCE trees are graded at once (default: one for each four processors). Exit status: 0 if all have a grade.
set -u
cd "$(dirname -- "$0")/../.." || exit 2
here=$PWD/tests/grade

give_up() {
    printf 'grade_all.sh: %s\nHINT: %s\n' "$1" "$2" >&2
    exit 2
}

# confined FOLDER COMMAND... -- run it in FOLDER, so that an archive can write nowhere else, and no file of more than 200 MB
confined() { (ulimit -f 200000 && tests/tools/limit.sh 60 "$here/confine.sh" --write "$1" --in "$1" -- "${@:2}"); }

# counted FOLDER COMMAND... -- the same without messages; fails only if the time is over
counted() { confined "$@" 2>/dev/null || case $? in 124 | 137) false ;; esac }

# unpack ARCHIVE FOLDER -- if it cannot be unpacked, print why; print nothing if it is over a limit. An archive can state wrong sizes, so
# this counts the files and folders in its paths, and all bytes that come out of it, holes included, before it writes anything.
unpack() {
    local names=(tar -tf .archive --quoting-style=literal) bytes=(tar -xOf .archive) n_bytes status
    local all=(tar -xf .archive --no-same-owner --no-same-permissions)
    [ "$(head -c 4 -- "$1" | tr -d '\0')" != $'PK\3\4' ] ||
        names=(unzip -Z1 .archive) bytes=(unzip -pP x .archive) all=(unzip -qP x .archive) # a password that is wrong: unzip asks for none
    (ulimit -f 200000 && cp -- "$1" "$2/.archive") 2>&1 || return
    set -o pipefail
    counted "$2" "${names[@]}" | LC_ALL=C awk -F '[/\\\\]' '
        { path = ""; for (i = 1; i <= NF; i++) if ($i != "" && !((path = path "/" $i) in seen)) { seen[path]; n++ } }
        n > 20000 { exit 1 }' || return
    n_bytes=$(counted "$2" "${bytes[@]}" | head -c 200000001 | wc -c) && [ "$n_bytes" -le 200000000 ] || return
    confined "$2" "${all[@]}" 2>&1 | awk '!/^($|\[|tar: (Exiting|Removing))/ && !n++'
    status=${PIPESTATUS[0]}
    chmod -R u+rwX "$2"
    [ "$status" -eq 0 ] || [ "${all[0]} $status" = 'unzip 1' ] # 1: unzip has warned, of backslashes for example
}

# labs_in FOLDER -- the folder below it that has the labs, if there is one; follows no link, which could lead to other people's files
labs_in() {
    local found=() depth
    for depth in 1 2 3 4; do
        mapfile -d '' found < <(find "$1" -mindepth $depth -maxdepth $depth -type d -name lab1_flatparam ! -path '*/__MACOSX/*' -print0)
        [ ${#found[@]} -eq 0 ] || break
    done
    [ ${#found[@]} -eq 1 ] && printf '%s' "${found[0]%/lab1_flatparam}"
}

# line TEXT -- one line of UTF-8 for the table, whatever the text is
line() { printf '%s\n' "$(printf %s "$1" | head -c 300 | LC_ALL=C tr '\000-\037\177' ' ' | iconv -cf UTF-8 -t UTF-8 2>/dev/null)"; }

# one NAME FOLDER -- grade it; why there is no grade goes to FOLDER.why
one() {
    local tree=$dir/$1 out=$2 why='' said
    shift 2
    if [ -h "$tree" ]; then
        why='is a link'
    elif [ -f "$tree" ]; then
        mkdir "$out.tree" && said=$(unpack "$tree" "$out.tree") ||
            why="cannot be unpacked: ${said:-more than 20000 files and folders, 200 MB or 60 s; or a password}"
        tree=$out.tree
    elif [ ! -d "$tree" ]; then
        why='is no file or folder'
    fi
    [ -n "$why" ] || tree=$(labs_in "$tree" && echo .) || why='has no folder with the labs, or several'
    [ -n "$why" ] || "$here/submission.sh" "${tree%.}" "$out" "$build" "${arguments[@]}" >"$out.log" 2>&1 </dev/null ||
        { why=$(grep -am1 '^[a-z_]*\.sh: ' "$out.log" || tail -1 "$out.log") && why=${why#*.sh: } && why=${why:-it ended without a message}; }
    rm -rf "$out.tree"
    line "$why" >"$out.why"
    echo "${out##*/}: $(grep -aE '^(All labs|Lab [0-9]): ' "$out.log" 2>/dev/null | tail -1 | grep . || echo "no grade: $(cat "$out.why")")"
}

{ [ $# -ge 3 ] && [ -d "$1" ]; } || give_up "there is no folder \"${1:-}\"" 'make grade-all DIR=<the folder with the submissions> OUT=<a new directory>'
[ ! -e "$2" ] || [ -z "$(ls -A "$2")" ] || give_up "$2 is not empty" 'OUT=<a new directory>'
mkdir -p "$2" || exit 2
dir=$(realpath -- "$1") out=$(realpath -- "$2") build=$(realpath -- "$3")
shift 3
arguments=("$@")
export CONFINE_TOOL=$build/tests/grade/confine
CONFINE=$("$here/confine.sh" --kind "$out") || exit 2
export CONFINE
at_once=${AT_ONCE:-$((($(nproc) + 3) / 4))}
[[ $at_once =~ ^[1-9][0-9]*$ ]] || give_up "AT_ONCE: got \"$at_once\", expected a number from 1" 'AT_ONCE=2'

# A folder of OUT has a plain name, whatever a submission is called.
names=() folders=()
shopt -s dotglob nullglob
for path in "$dir"/*; do
    case ${path##*/}/$out/ in .DS_Store/* | ._* | .git/* | */"$path"/*) continue ;; esac
    names+=("${path##*/}")
    folders+=("$out/$(printf '%03d-' ${#names[@]}; printf %s "${path##*/}" | LC_ALL=C tr -c 'A-Za-z0-9_.-' _ | head -c 100)")
done
[ ${#names[@]} -gt 0 ] || give_up "$dir has nothing in it" 'DIR has a folder or an archive for each submission'
for i in "${!names[@]}"; do
    while [ "$(jobs -pr | wc -l)" -ge "$at_once" ]; do wait -n; done
    one "${names[i]}" "${folders[i]}" &
done
wait

files=()
for i in "${!names[@]}"; do
    line "${names[i]}" >"${folders[i]}.name"
    [ -f "${folders[i]}.why" ] || echo 'its grading was ended' >"${folders[i]}.why"
    files+=("${folders[i]}.name" "${folders[i]}.why")
    [ ! -f "${folders[i]}/grade.txt" ] || files+=("${folders[i]}/grade.txt" "${folders[i]}/report.txt")
done
# A spreadsheet takes a text that begins with = + - or @ for a formula.
awk -v q='"' '
    function cell(text) { gsub(/"/, "\"\"", text); return q (text ~ /^[=+@-]/ ? " " : "") text q }
    FNR == 1 { n += FILENAME ~ /\.name$/ }
    FILENAME ~ /\.name$/ { name[n] = $0; next }
    FILENAME ~ /\.why$/ { why[n] = $0; next }
    /^(All labs|Lab [0-9]): [0-9]+\/[0-9]+/ { split($0, part, /[:\/ ]+/); lab = $1 == "All" ? "all" : "lab " part[2]; sum[n, lab] = part[3]; most[n, lab] = part[4] + 0; is_lab[lab] }
    /^  [0-9]+\/[0-9]+  [1-6]\.[0-9a-z]+ / { split($1, part, "/"); if (!($2 in seen)) { seen[$2]; task[++n_tasks] = $2 } got[n, $2] = part[1] }
    /^confined by: / { kind[n] = $3 }
    /^submission: / { taken[n] = $2; refused[n] = $5 }
    END {
        printf "submission,graded,points,of,confined_by,taken,refused,why"
        for (l = 1; l <= 6; l++) if (("lab " l) in is_lab) printf ",lab %d", l
        for (t = 1; t <= n_tasks; t++) printf ",%s", task[t]
        print ""
        for (i = 1; i <= n; i++) {
            total = most[i, "all"]; points = sum[i, "all"]
            for (l = 1; l <= 6; l++) if (most[i, "all"] == "" && (i, "lab " l) in most) { total = most[i, "lab " l]; points = sum[i, "lab " l] }
            printf "%s,%s,%s,%s,%s,%s,%s,%s", cell(name[i]), why[i] == "" ? "yes" : "no", points, total, kind[i], taken[i], refused[i], cell(why[i])
            for (l = 1; l <= 6; l++) if (("lab " l) in is_lab) printf ",%s", sum[i, "lab " l]
            for (t = 1; t <= n_tasks; t++) printf ",%s", got[i, task[t]]
            print ""
        }
    }' "${files[@]}" >"$out/grades.csv"
rm -f "$out"/*.why "$out"/*.name
n_graded=$(awk -F, 'NR > 1 && /^"([^"]|"")*",yes,/' "$out/grades.csv" | wc -l)
echo "grade-all: $n_graded of ${#names[@]} submissions have a grade; see $out/grades.csv"
[ "$n_graded" -eq ${#names[@]} ]
