# apply.awk -- read the tables of mutants, check that each mutant is whole and fits the sources; list them, or plant one.
#
#   awk [-v list=1 | -v plant=NAME] -f tests/mutants/apply.awk ROOM.mut ...        from the top of the tree
#
# The form of a table stands in run.sh. list prints a line for each mutant: name, check, ranks, make targets, files and
# bug, with ASCII's unit separator between them. What is wrong goes to standard output otherwise, a line each: "NAME: what"; the exit
# status is 0 iff nothing was wrong. A mutant with a fault is not planted, not even in part.
# Edits are made in memory, in their order: a later one sees what an earlier one of its mutant left.

function complain(what) {
    if (list || (plant != "" && plant != name))
        return
    print (name != "" ? name : FILENAME) ": " what
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

# The text of a source after the edits so far. Sources are kept, as many mutants share one.
function current(path) {
    if (path in edited)
        return edited[path]
    if (!(path in source)) {
        source[path] = read_file(path)
        missing[path] = !here
    }
    return source[path]
}

# The lines that were read since the last edit replace the old text by the new one.
function edit(    whole, p) {
    if (!n_old && !n_new)
        return
    edits++
    if (plant != "" && plant != name) {
        # another one is to be planted
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

# Is the test there that CHECK names? The words of a command are not looked at.
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
        if (line !~ /^#/ && split(line, word, " ") && word[5] != "-") # -: a task that is not there yet
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
