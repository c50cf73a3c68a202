#!/bin/bash
# grade_all.sh -- grade all trees in a folder side by side, with submission.sh, and write one table.
#
#   tests/grade/grade_all.sh DIR OUT BUILD [ARGUMENTS OF submission.sh]
#
# DIR has a folder or an archive (tar, also compressed; zip if there is unzip) for each submission; hidden files are left out. OUT, a new
# or an empty folder, gets a folder for each, and grades.csv: its columns are the name in DIR, whether there is a grade, the
# points, the possible points, the points of each lab and task, the kind of confinement, the numbers of taken and refused files, and, if
# there is no grade, why. AT_ONCE trees are graded at once (default: one for each four processors). Exit status: 0 if all have a grade.
set -u
cd "$(dirname -- "$0")/../.." || exit 2
here=$PWD/tests/grade

give_up() {
    printf 'grade_all.sh: %s\nHINT: %s\n' "$1" "$2" >&2
    exit 2
}

# unpack ARCHIVE FOLDER -- confined, so that an archive can write nowhere else
unpack() {
    local list='tar -tvf .archive | awk "{ n += \$3 } END { exit NR > 20000 || n > 2e8 }"' extract='tar -xf .archive --no-same-owner --no-same-permissions'
    [[ ${1,,} != *.zip ]] || list='unzip -l .archive | awk "END { exit \$2 > 20000 || \$1 > 2e8 }"' extract='unzip -q .archive'
    cp -- "$1" "$2/.archive" &&
        (ulimit -f 200000 && tests/tools/limit.sh 60 "$here/confine.sh" --write "$2" --in "$2" -- \
            sh -c "if $list; then $extract; else echo 'more than 20000 files or 200 MB' && false; fi") 2>&1 | tail -1
    return "${PIPESTATUS[0]}"
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

# one NAME FOLDER -- grade it; the row of the table goes to FOLDER.row
one() {
    local tree=$dir/$1 out=$2 why='' said
    shift 2
    if [ -h "$tree" ]; then
        why='is a link'
    elif [ ! -d "$tree" ]; then
        mkdir "$out.tree" && said=$(unpack "$tree" "$out.tree") || why="cannot be unpacked: $said"
        tree=$out.tree
    fi
    [ -n "$why" ] || tree=$(labs_in "$tree") || why='has no folder with the labs, or several'
    [ -n "$why" ] || "$here/submission.sh" "$tree" "$out" "$build" "${arguments[@]}" >"$out.log" 2>&1 </dev/null ||
        why=$(grep -m1 '^[a-z_]*\.sh: ' "$out.log" || tail -1 "$out.log")
    rm -rf "$out.tree"
    echo "${why#*.sh: }" >"$out.why"
    echo "${out##*/}: $(grep -E '^(All labs|Lab [0-9]): ' "$out.log" 2>/dev/null | tail -1 | grep . || echo "no grade: ${why#*.sh: }")"
}

{ [ $# -ge 3 ] && [ -d "$1" ]; } || give_up "there is no folder \"${1:-}\"" 'make grade-all DIR=<the folder with the submissions> OUT=<a new directory>'
[ ! -e "$2" ] || [ -z "$(ls -A "$2")" ] || give_up "$2 is not empty" 'OUT=<a new directory>'
mkdir -p "$2" || exit 2
dir=$(realpath -- "$1") out=$(realpath -- "$2") build=$(realpath -- "$3")
shift 3
arguments=("$@")
export CONFINE_TOOL=$build/tests/grade/confine
CONFINE=$("$here/confine.sh" --kind) || exit 2
export CONFINE
at_once=${AT_ONCE:-$((($(nproc) + 3) / 4))}
[[ $at_once =~ ^[1-9][0-9]*$ ]] || give_up "AT_ONCE: got \"$at_once\", expected a number from 1" 'AT_ONCE=2'

# A folder of OUT has a plain name, whatever a submission is called.
names=() folders=()
for path in "$dir"/*; do
    [ -e "$path" ] || [ -h "$path" ] || continue
    names+=("${path##*/}")
    plain=${path##*/}
    folders+=("$out/$(printf '%03d' ${#names[@]})-${plain//[!A-Za-z0-9_.-]/_}")
done
[ ${#names[@]} -gt 0 ] || give_up "$dir has nothing in it" 'DIR has a folder or an archive for each submission'
for i in "${!names[@]}"; do
    while [ "$(jobs -pr | wc -l)" -ge "$at_once" ]; do wait -n; done
    one "${names[i]}" "${folders[i]}" &
done
wait

files=()
for i in "${!names[@]}"; do
    printf '%s\n' "${names[i]//$'\n'/ }" >"${folders[i]}.name"
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
