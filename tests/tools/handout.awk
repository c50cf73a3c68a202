# handout.awk -- replaces the solutions of one C source (or C++ in the same layout) by stubs; handout.sh has the rules.
# -v with="1 2": the solutions of these labs stay, except those of the tasks in -v open="1.6 2.6".
# It relies on the repository's layout: a function's "{" and "}" are in the first column.

function fail(line, what) {
    printf "handout.awk: %s:%d: %s\n", FILENAME, line, what > "/dev/stderr"
    exit failed = 1
}

# uses -- how often text line i has the name as a whole word
function uses(name, i,    rest, n, p, before, after) {
    rest = text[i]
    if (name == "")
        fail(i, "a declaration without a name")
    while ((p = index(rest, name)) > 0) {
        before = p > 1 ? substr(rest, p - 1, 1) : " "
        after = substr(rest, p + length(name), 1)
        if (before !~ /[A-Za-z0-9_>.]/ && after !~ /[A-Za-z0-9_]/)
            n++
        rest = substr(rest, p + length(name))
    }
    return n
}

# Whether the function uses the name outside all solutions, besides its declaration. (STUB lines count.)
function used_outside(name, first, last,    i, n) {
    for (i = first; i <= last; i++) {
        if (!hidden[i] || text[i] ~ /STUB:/)
            n += uses(name, i)
    }
    return n > 1
}

# declared -- the last identifier of a declaration such as "const float *x[4]"
function declared(decl) {
    sub(/ *[=;].*/, "", decl)
    gsub(/\[[^]]*\]/, "", decl)
    gsub(/[ )]+$/, "", decl)
    sub(/^.*[^A-Za-z0-9_]/, "", decl)
    return decl
}

# names_before -- collects the function's parameters (its head is lines first..brace-1) and variables declared before line begin
function names_before(first, brace, begin,    i, head, parts, n, k, line) {
    n_names = 0
    for (i = first; i < brace; i++)
        head = head " " text[i]
    sub(/^[^(]*\(/, "", head)
    n = split(head, parts, ",")
    for (k = 1; k <= n; k++)
        if (declared(parts[k]) != "void" && declared(parts[k]) != "")
            names[++n_names] = declared(parts[k])
    for (i = brace + 1; i < begin; i++) {
        line = text[i]
        if (hidden[i] || line !~ /^    (const )?(struct |unsigned )?[A-Za-z_][A-Za-z_0-9]* \**[a-z_][A-Za-z_0-9]*(\[[^]]*\])?( =|;|,)/ || line ~ /^    (return|goto) /)
            continue
        n = split(line, parts, /, \*?/)
        names[++n_names] = declared(parts[1])
        if (line !~ /[({]/)
            for (k = 2; k <= n; k++) {
                sub(/;.*/, "", parts[k])
                names[++n_names] = declared(parts[k])
            }
    }
}

# keep -- prints the text of a solution that stays
function keep(begin, end,    i) {
    for (i = begin + 1; i < end; i++)
        if (text[i] !~ /\/\* STUB:/)
            print text[i]
}

function stub(begin, end, id, in_function,    i, k, n_stub, line, voids) {
    if (id ~ /\.0$/) {
        for (i = begin + 1; i < end; i++) {
            line = text[i]
            sub(/, *-?[0-9]+},/, ", -1},", line)
            print line
        }
        return
    }
    for (i = begin + 1; i < end; i++)
        n_stub += text[i] ~ /\/\* STUB:/
    if (in_function) {
        for (k = 1; k <= n_names; k++)
            if (!used_outside(names[k], head_line, tail_line))
                voids = voids " (void)" names[k] ";"
        if (voids != "")
            print "   " voids
    } else if (!n_stub) {
        fail(begin, "a solution at file scope needs a STUB line")
    }
    for (i = begin + 1; i < end; i++)
        if (match(text[i], /\/\* STUB:.*\*\//)) {
            line = text[i]
            sub(/\/\* STUB: ?/, "", line)
            sub(/ *\*\//, "", line)
            if (line !~ /^ *$/)
                print line
        }
    if (!n_stub)
        print "    return fsdp_todo(\"" id "\");"
}

{ text[NR] = $0 }

END {
    for (i = 1; i <= NR; i++) { # finds the lines of solutions
        if (text[i] ~ /SOLUTION BEGIN/)
            inside = 1
        if (inside && text[i] !~ /SOLUTION/)
            hidden[i] = 1
        if (text[i] ~ /SOLUTION END/)
            inside = 0
    }
    if (inside)
        fail(NR, "SOLUTION BEGIN without END")
    for (i = 1; i <= NR; i++) {
        if (!hidden[i] && text[i] ~ /^[A-Za-z_].*\(/ && text[i] !~ /;$/)
            start = i
        if (text[i] == "{") {
            head_line = start
            brace = i
            for (tail_line = i; text[tail_line] != "}"; tail_line++)
                ;
        }
        if (text[i] == "}")
            brace = 0
        if (text[i] !~ /SOLUTION BEGIN/) {
            print text[i]
            continue
        }
        id = text[i]
        sub(/.*SOLUTION BEGIN */, "", id)
        sub(/ *\*\/.*/, "", id)
        for (end = i; text[end] !~ "SOLUTION END " id; end++)
            if (end > NR)
                fail(i, "no SOLUTION END " id)
        indent = text[i]
        sub(/[^ ].*/, "", indent)
        given = index(" " with " ", " " substr(id, 1, 1) " ") > 0 && index(" " open " ", " " id " ") == 0
        print indent "/* TASK " id " BEGIN: " (given ? "given" : brace ? "yours to write; README.md of this lab says what" : "room for functions of your own") ". */"
        if (brace)
            names_before(head_line, brace, i)
        if (given)
            keep(i, end)
        else
            stub(i, end, id, brace > 0)
        print indent "/* TASK " id " END */"
        i = end
    }
    exit failed
}
