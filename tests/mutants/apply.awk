# apply.awk -- reads the tables of mutants and checks that each mutant is complete and fits the sources; lists them, or plants one.
#
#   awk [-v list=1 | -v plant=NAME] -f tests/mutants/apply.awk ROOM.mut ...        from the top of the tree
#
# run.sh describes the tables. list prints a line for each mutant: name, check, ranks, make targets, files and bug, separated by
# ASCII's unit separator. Without list, errors are printed, one line each: "NAME: what". Exit status 0 iff there was no error. A
# mutant with an error is not planted, not even in part.
# Edits are made in memory, in their order; an edit sees the mutant's earlier edits.

function complain(what) {
    if (list || (plant != "" && plant != name))
        return
    print (name != "" ? name : FILENAME) ": " what
    bad++
}

# read_file PATH -- returns its text; sets here to whether it could be read
function read_file(path,    whole, line, got) {
    whole = ""
    while ((got = (getline line < path)) > 0)
        whole = whole line "\n"
    close(path)
    here = got == 0
    return whole
}

# The text of a source after the edits so far. Sources are kept, because many mutants share one.
function current(path) {
    if (path in edited)
        return edited[path]
    if (!(path in source)) {
        source[path] = read_file(path)
        missing[path] = !here
    }
    return source[path]
}

# Replaces the old text by the new one; both were read since the last edit.
function edit(    whole, p) {
    if (!n_old && !n_new)
        return
    edits++
    if (plant != "" && plant != name) {
        # another mutant is to be planted
    } else if (list)
        files = files (index(" " files " ", " " file " ") ? "" : (files == "" ? "" : " ") file)
    else {
        whole = current(file)
        p = old == "" ? 0 : index(whole, old)
        if (file == "" || missing[file])
            complain("FILE " file " is not there")
        else if (!p)
            complain("the old text is not in " file ": " shown)
        else if (index(substr(whole, p + 1), old))
            complain("the old text stands twice in " file ": " shown)
        else
            edited[file] = substr(whole, 1, p - 1) new substr(whole, p + length(old))
    }
    n_old = n_new = 0
    old = new = ""
}

# Checks that the test which CHECK names exists. The words of a command are not checked.
function check_test(    kind, what) {
    kind = what = check
    sub(/ .*/, "", kind)
    sub(/^[^ ]* */, "", what)
    if (kind == "grade") {
        if (!(what in graded))
            complain("CHECK: no task \"" what "\" in tests/grade/tasks.txt")
    } else if (kind == "unit") {
        read_file("tests/unit/" what ".c")
        if (!here)
            complain("CHECK: tests/unit/" what ".c is not there")
    } else if (kind != "cmd" || what == "")
        complain("CHECK is neither grade TASK, unit NAME nor cmd COMMAND")
}

function end_mutant(    path) {
    if (name == "")
        return
    edit()
    if (!edits)
        complain("no edit")
    if (list)
        print name, check, ranks, build, files, bug
    if (plant == name && !bad)
        for (path in edited) {
            printf "%s", edited[path] > path
            close(path)
        }
    all_bad += bad
    split("", edited)
    name = files = ""
    edits = bad = 0
}

BEGIN {
    OFS = "\037"
    while ((getline line < "tests/grade/tasks.txt") > 0)
        if (line !~ /^#/ && split(line, word, " ") && word[5] != "-") # -: a task without a test
            graded[word[1]] = 1
}

FNR == 1 {
    end_mutant()
    file = check = ranks = build = ""
}
/^(#|$)/ { next }
/^CHECK / { end_mutant(); check = substr($0, 7); ranks = build = file = ""; check_test(); all_bad += bad; bad = 0; next }
/^RANKS / { ranks = substr($0, 7); next }
/^BUILD / { build = substr($0, 7); next }
/^FILE / { edit(); file = substr($0, 6); next }
/^BUG [^ :]+: ./ {
    end_mutant()
    name = substr($2, 1, length($2) - 1)
    bug = substr($0, length($2) + 6)
    if (name in known)
        complain("is there twice")
    known[name] = 1
    n_mutants++
    if (check == "")
        complain("no CHECK above it")
    next
}
name != "" && /^-/ { if (n_new) edit(); if (!n_old) shown = substr($0, 2); old = old (n_old++ ? "\n" : "") substr($0, 2); next }
name != "" && /^\+/ { new = new (n_new++ ? "\n" : "") substr($0, 2); next }
{ complain("line " FNR " of " FILENAME " is not understood: " $0) }

END {
    end_mutant()
    if (plant != "" && !(plant in known)) {
        print plant ": no such mutant"
        all_bad++
    }
    if (!list && plant == "" && !all_bad)
        print n_mutants
    exit all_bad > 0
}
