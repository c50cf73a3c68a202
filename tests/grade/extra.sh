#!/bin/sh
# extra.sh -- an instructor's tests, graded with the tasks of tasks.txt: check their folder, write a table of both.
#
#   tests/grade/extra.sh DIR BUILD                  (make test-labs EXTRA_TESTS=DIR; INSTRUCTORS.md has an example)
#   tests/grade/extra.sh --failed SOURCE            for make: SOURCE does not build, for the reasons printed before
#
# DIR has a tasks.txt with the columns of tests/grade/tasks.txt, and NAME.c for each program NAME in it. Writes the table to
# BUILD/extra/tasks.txt, with DIR's lines after a line "# hidden". Prints the names of the programs.
set -u
if [ "$1" = --failed ]; then
    printf 'extra.sh: %s does not build: the errors above, expected none\nHINT: grade_lib.h and the labs have the functions that it may call; lab1.c shows how\n' "$2" >&2
    exit 2
fi
dir=$1 out=$2/extra table=$1/tasks.txt public=tests/grade/tasks.txt

# refuse WHAT HINT
refuse() {
    printf 'extra.sh: EXTRA_TESTS=%s: %s\nHINT: %s\n' "$dir" "$1" "$2" >&2
    exit 2
}

[ -d "$dir" ] || refuse 'there is no such folder' 'EXTRA_TESTS is a folder with a tasks.txt and a C program for each name in it'
case $dir in *[!A-Za-z0-9_./+-]*) refuse 'got a path with characters that make does not take' 'use letters, digits and _ . + - in it' ;; esac
[ -f "$table" ] || refuse "there is no $table" "write one, with the columns of $public: task points ranks timeout program needs title"
all=$(cat "$public" && echo '# hidden' && sed 's/^#.*/#/' "$table") || exit 2
why=$(echo "$all" | awk -v table="$table" '
    function refuse(what, hint) { print what "|" hint; exit }
    /^# hidden$/ { hidden = 1; n_before = NR; next }
    /^#/ || !NF { next }
    { at = table ":" NR - n_before ": " }
    !hidden { known[$1]; public[$5]; next }
    NF < 7 { refuse(at "got " NF " columns, expected task points ranks timeout program needs title", "a hyphen stands for no needs") }
    $1 !~ /^[1-6][.][0-9A-Za-z]+$/ { refuse(at "got the task \"" $1 "\", expected a lab from 1 to 6, a dot, digits and letters", "1.91 and 1.x1 are such numbers") }
    $1 in known { refuse(at "there is a task " $1 " already", "choose another number, such as " $1 "91") }
    $2 !~ /^[0-9]+$/ || $4 !~ /^[1-9][0-9]*$/ { refuse(at "got points \"" $2 "\" and timeout \"" $4 "\", expected whole numbers, a timeout from 1 second", "2 points and 60 seconds are usual") }
    $3 !~ /^[1-9](,[1-9])*$/ || $2 > 0 && ("," $3 ",") !~ /,2,3,4,/ { refuse(at "got ranks \"" $3 "\", expected numbers by comma, with 2,3,4 among them", "a task earns its points on 2, 3 and 4 ranks") }
    $5 !~ /^[a-z][a-z0-9_]*$/ || $5 in public { refuse(at "got the program \"" $5 "\", expected small letters, digits and _, and none of the labs'\'' programs", "name it hidden1") }
    {
        known[$1]
        n = split($6, need, ",")
        for (i = 1; i <= n; i++) if (need[i] != "-" && !(need[i] in known)) refuse(at "got the need " need[i] ", which is no task above this one", "a hyphen stands for no needs")
    }')
[ -z "$why" ] || refuse "${why%|*}" "${why##*|}"
own=$(awk '!/^#/ && NF { print $1 ":" $5 }' "$table")
[ -n "$own" ] || refuse "$table has no task" "write a line for each, with the columns of $public"
for task in $own; do
    source=$dir/${task#*:}.c
    [ -f "$source" ] || refuse "task ${task%%:*}: there is no $source" 'write it, against tests/grade/grade_lib.h, or mend the column program'
    [ ! -r "$source" ] || grep -qF "\"${task%%:*}\"" "$source" ||
        refuse "$source has no \"${task%%:*}\"" "grade_main's table needs {\"${task%%:*}\", function}"
done
# Do not rewrite an unchanged table: in a container it belongs to another user.
folder=$(echo "$dir" | cksum)
mkdir -p "$out" || exit 2
[ "$folder" = "$(cat "$out/folder" 2>/dev/null)" ] || { rm -f "$out"/*.d && echo "$folder" >"$out/folder"; } || exit 2
[ "$all" = "$(cat "$out/tasks.txt" 2>/dev/null)" ] || echo "$all" >"$out/tasks.txt" || exit 2
echo "$own" | sed 's/.*://' | sort -u
