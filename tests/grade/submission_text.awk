# submission_text.awk -- find what no solution needs in a learner's source after preprocessing; print "what it is|a hint" for each.
#
#   awk -f submission_text.awk TEXT
#
# Compilers copy some strings to the assembler as they are: those of asm labels, sections, aliases and versions. Such a string may have
# only the characters of names; then the checks of the object (submission_object.awk) see all that it does.
function complain(what, hint) { if (!said[what]++) print what "|" hint }

# scan TEXT -- check the strings up to the bracket that closes the last of `depth` open ones
function scan(text,    c, string) {
    while (depth > 0 && match(text, /["'()]/)) {
        c = substr(text, RSTART, 1)
        text = substr(text, RSTART + 1)
        depth += (c == "(") - (c == ")")
        if (c == "'") sub(/^([^'\\]|\\.)*'/, "", text)
        if (c != "\"") continue
        if (!match(text, /^([^"\\]|\\.)*"/)) RLENGTH = length(text)
        string = substr(text, 1, RLENGTH - 1)
        text = substr(text, RLENGTH + 1)
        if (string ~ /[^A-Za-z0-9_.$@]/)
            complain("has \"" substr(string, 1, 60) "\" where a name is expected", "names have letters, digits and _; a function of yours may not be called section, alias, weakref, symver or ifunc")
    }
}

/^#[ \t]*pragma[ \t]+GCC[ \t]+pch_preprocess/ { complain("includes a compiled header", "include only headers of the course and the compiler") }
/^#/ && !/^#[ \t]*([0-9]|pragma)/ { complain("has the directive " $1 " " $2, "do without it") }
/^#/ { next }
{ piece = piece " " $0 }
length(piece) > 65536 { text = text piece; piece = "" }
END {
    n = split(text piece, part, /((^|[^A-Za-z0-9_$])(asm|__asm|__asm__)|[(,:][ \t\f\v\r]*_?_?(section|alias|weakref|symver|ifunc)(__)?)[ \t\f\v\r]*\(/)
    for (i = 2; i <= n; i++) {
        depth++
        scan(part[i])
    }
}
