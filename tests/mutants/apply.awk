# apply.awk -- read mutants, check that each is whole and fits the sources; with -v plant=1 plant them too.
#
#   awk [-v plant=1] -f tests/mutants/apply.awk NAME.mut ...        from the top of the tree
#
# The form of a mutant stands in run.sh. What is wrong goes to standard output, a line each: "NAME.mut: what".
# Exit status 0 iff nothing was wrong. A mutant with a fault is not planted, not even in part.
# Edits are made in memory, in their order, so that a later one sees what an earlier one of its mutant left.

function complain(what) {
    print mutant ": " what
    bad++
}

# read_file PATH -- its text; sets here to whether it could be read
function read_file(path,    whole, line, got) {
    whole = ""
    while ((got = (getline line < path)) > 0)
        whole = whole line "\n"
    close(path)
    here = got == 0
    return whole
}

# the text of a source as the edits so far have left it. Sources are kept, as many mutants share one.
function current(path) {
    if (path in edited)
        return edited[path]
    if (!(path in source)) {
        source[path] = read_file(path)
        missing[path] = !here
    }
    return source[path]
}

function edit(    whole, p) {
    edits++
    whole = current(file)
    if (file == "" || missing[file])
        return complain("FILE " file " is not there")
    p = old == "" ? 0 : index(whole, old)
    if (!p)
        return complain("OLD text is not in " file ": " shown)
    if (index(substr(whole, p + 1), old))
        return complain("OLD text stands twice in " file ": " shown)
    edited[file] = substr(whole, 1, p - 1) new substr(whole, p + length(old))
}

# Is the test there that CHECK names? The words of a command are not looked at.
function check_test(    kind) {
    kind = test
    sub(/ .*/, "", kind)
    sub(/^[^ ]* */, "", test)
    if (kind == "grade") {
        if (!(test in graded))
            complain("CHECK: no task \"" test "\" in tests/grade/tasks.txt")
    } else if (kind == "unit") {
        read_file("tests/unit/" test ".c")
        if (!here)
            complain("CHECK: tests/unit/" test ".c is not there")
    } else if (kind != "cmd" || test == "")
        complain("CHECK is neither grade TASK, unit NAME nor cmd COMMAND")
}

function begin_mutant() {
    mutant = FILENAME
    seen[FILENAME] = 1
    bad = edits = n_check = n_bug = 0
    part = file = test = ""
    split("", edited)
}

function end_mutant(    path) {
    if (n_check != 1)
        complain("needs one CHECK line, has " n_check)
    else
        check_test()
    if (n_bug != 1)
        complain("needs one BUG line, has " n_bug)
    if (part != "" || !edits)
        complain("no complete edit")
    if (plant && !bad)
        for (path in edited) {
            printf "%s", edited[path] > path
            close(path)
        }
    all_bad += bad
}

BEGIN {
    while ((getline line < "tests/grade/tasks.txt") > 0)
        if (line !~ /^#/ && split(line, word, " ") && word[5] != "-") # -: a task that is not there yet
            graded[word[1]] = 1
}

FNR == 1 {
    if (mutant != "")
        end_mutant()
    begin_mutant()
}
part == "" && /^# CHECK: / { test = substr($0, 10); n_check++; next }
part == "" && /^# BUG: ./ { n_bug++; next }
part == "" && /^(#|$)/ { next }
part == "" && /^FILE / { file = $2; next }
part == "" && $0 == "OLD" { part = "old"; old = new = ""; first = 1; next }
part == "old" && $0 == "NEW" { part = "new"; first = 1; next }
part == "new" && $0 == "END" { part = ""; edit(); next }
part == "old" { if (first) shown = $0; old = old (first ? "" : "\n") $0; first = 0; next }
part == "new" { new = new (first ? "" : "\n") $0; first = 0; next }
{ complain("line " FNR " stands outside an edit: " $0) }

END {
    if (mutant != "")
        end_mutant()
    for (i = 1; i < ARGC; i++)
        if (!(ARGV[i] in seen)) {
            mutant = ARGV[i]
            complain("is empty")
            all_bad++
        }
    exit all_bad > 0
}
