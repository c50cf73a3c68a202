#!/bin/sh
# reading.sh -- how much a learner reads before writing the first line: prints the number of lines for each lab, and a PASS or
# FAIL line for each rule.
#
# A learner reads the lab's README and the files that it lists under "Read these N files"; of a .c or .cpp file only the part
# above the first task. HINTS.md is for failing tests and is not counted. These pages must be complete: they declare or call
# each function that a solution calls, and name each member that it uses. Where they say "N passed, 0 failed", N must be what the
# grader says when all tasks but the unwritten stars pass. Pages that an earlier lab has listed need not be listed again.
set -u
cd "$(dirname "$0")/../.." || exit 2
. tests/tools/rule.sh
text=$(mktemp "${TMPDIR:-/tmp}/fsdp-reading.XXXXXX")
trap 'rm -f "$text" "$text.all" "$text.star"' EXIT

# listed LAB -- the files that its README lists
listed() { awk '/^Read these / { on = 1 } on && /^[0-9]+\. `/ { split($0, part, "`"); print part[2]; n++ } on && n && /^$/ { exit }' "$1/README.md"; }

# read_of LAB -- all the text that is read
read_of() {
    cat "$1/README.md"
    for file in $(listed "$1"); do
        case $file in
        *.c | *.cpp) awk '/SOLUTION BEGIN|\/\* TASK [0-9]/ { exit } { print }' "$file" ;;
        *) cat "$file" ;;
        esac
    done
}

# uses FILE -- "name(" for each function that its solutions call, "name" for each member that they use
uses() {
    awk '/SOLUTION END/ { on = 0 } on { sub(/\/\*.*\*\//, ""); gsub(/"[^"]*"/, ""); print } /SOLUTION BEGIN/ { on = 1 }' "$1" |
        grep -oE '(->|\.)[a-z_]+[a-z_0-9]*|[a-z][a-z0-9]*_[a-z0-9_]*\(' | sed -E 's/->|\.//' | sort -u | grep -v '^atomic_'
}

# missing FILE TEXT -- what FILE's solutions use and neither TEXT nor FILE itself, which a learner sees, declares
missing() {
    for name in $(uses "$1"); do
        pattern=$(echo "$name" | sed 's/($/\\(/')
        grep -qE "(^|[^a-zA-Z0-9_])$pattern" "$2" || grep -qE "^[a-z].*[ *]$pattern" "$1" || echo "$1: $name"
    done
}

# opened FILE -- what is read besides for a starred task in FILE: its header, and the headers that this one and the README name
opened() {
    cat "${1%.c}.h" 2>/dev/null
    cat "${1%.c}.h" "${1%/*}/README.md" 2>/dev/null | grep -oE '(common|lab[1-6]_[a-z]+)/[a-z0-9_/]+[.]h' | sort -u | xargs cat
}

# hours LAB -- the hours that its README states, and the sum over its table of tasks without starred tasks. The minutes are in the
# column before the last
hours() {
    awk -F'|' '/bout [0-9]+ hours/ && !said { match($0, /bout [0-9]+/); said = substr($0, RSTART + 5, RLENGTH - 5) }
        /^\| task / { on = 1 }
        !/^\|/ { on = 0 }
        on && $2 !~ /\*/ { sum += $(NF - 2) }
        END { print said, sum / 60 }' "$1/README.md"
}

# passed N -- how many lines of lab N say PASS when all its tasks are written except the stars that need code
passed() {
    awk '!/^#/ && NF { print $1, $3, $7 }' tests/grade/tasks.txt | grep "^$1[.]" | while read -r task ranks word; do
        [ "$word" = star: ] && grep -q "SOLUTION BEGIN $task " "lab$1"_*/*.c || echo "$ranks"
    done | tr ',' '\n' | grep -c .
}

# rows N -- tasks of lab N without a row in its README that has minutes, and a star if the task is one
rows() {
    awk '!/^#/ && NF { print $1 ($7 == "star:" ? " *" : "") }' tests/grade/tasks.txt | grep "^$1[.]" | while read -r task; do
        awk -F'|' -v row=" $task " '$2 == row && $(NF - 2) ~ /^ *[1-9][0-9]* *$/ { n++ } END { exit n != 1 }' "lab$1"_*/README.md || echo "lab $1: no row \"$task\" with minutes"
    done
}

size='' words='' list='' row='' lacks='' time='' count=''

for lab in lab[1-6]_*; do
    case $lab in lab6_*) most=900 ;; *) most=450 ;; esac
    read_of "$lab" >"$text"
    lines=$(wc -l <"$text")
    n=$(listed "$lab" | wc -l)
    echo "$lab: $lines lines in $n files and its README, at most $most"
    [ "$lines" -le $most ] || size="$size$lab: $lines lines, at most $most
"
    # shellcheck disable=SC2046 # a list of names
    n_words=$(cat $(listed "$lab" | grep '[.]h$') | wc -w)
    case $lab in lab6_*) ;; *) [ "$n_words" -le 1800 ] || words="$words$lab: $n_words words in headers, at most 1800
" ;; esac
    grep -q "^Read these $n files" "$lab/README.md" || list="$list$lab: the README does not list as many files as it says, $n
"
    # shellcheck disable=SC2046 # two words
    set -- $(hours "$lab")
    [ "$1" = "$2" ] || time="$time$lab: about $1 hours, and the tasks of its table take $2
"
    n=${lab#lab} n=${n%%_*}
    row="$row$(rows "$n" | sed 's/$/; /' | tr -d '\n')"
    n=$(passed "$n")
    said=$(grep -oE '[0-9]+ passed, 0 failed' "$lab/README.md") && [ "$said" != "$n passed, 0 failed" ] && count="$count$lab: got \"$said\", expected $n
"
    cat "$text" >>"$text.all" # of this lab and those before
    for file in $(listed "$lab" | grep -E "^$lab/.*\.c(pp)?$"); do
        lacks="$lacks$(missing "$file" "$text.all" | sed 's/$/; /' | tr -d '\n')"
    done
    for file in $(awk '$7 == "star:" { print "SOLUTION BEGIN " $1 " " }' tests/grade/tasks.txt | grep -lF -f - "$lab"/*.c); do
        opened "$file" | cat "$text.all" - >"$text.star"
        lacks="$lacks$(missing "$file" "$text.star" | sed 's/$/; /' | tr -d '\n')"
    done
done
rule reading-size 'a learner reads at most 450 lines before the first of a lab is written, 900 in lab 6' "$size"
rule reading-words 'the headers of a lab'"'"'s list have at most 1800 words together, but for lab 6' "$words"
rule reading-list 'the README of a lab says how many files to read, and which' "$list"
rule reading-rows 'each task has a row in the README of its lab, with minutes' "$row"
rule reading-time 'the minutes in the README of a lab are its hours' "$time"
grep -q "$(passed 2) passed, 0 failed" tests/grade/handout/README.md || count="${count}tests/grade/handout/README.md: expected \"$(passed 2) passed, 0 failed\", of lab 2
"
rule reading-count 'the READMEs say how many lines pass, as the grader counts them' "$count"
rule reading-whole 'what the solutions of a lab use is in what was read before, or for a starred task in the headers that its own names' "$lacks"
exit $status
