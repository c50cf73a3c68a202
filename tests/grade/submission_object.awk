# submission_object.awk -- find forbidden things in a learner's object; print "what it is|a hint" for each. See submission.sh.
#
#   awk -f submission_object.awk -v ref=SECTIONS ALLOWED REFERENCE OWN SYMBOLS
#
# ALLOWED: names, one per line; a * at the end matches anything. REFERENCE, OWN: nm -P of this tree's object and of the
# learner's. SYMBOLS: readelf -SsW of the learner's object. ref: a file with readelf -SsW of this tree's object.
function complain(what, hint) { if (!said[what]++) print what "|" hint }

function may_use(name,    i) {
    if (name in allowed)
        return 1
    for (i = 1; i <= n_globs; i++)
        if (index(name, glob[i]) == 1)
            return 1
    return 0
}

# base NAME -- the function that the source calls if a compiler or a libc gave it this name: strtol for __isoc23_strtol,
# memcpy for __memcpy_chk (_FORTIFY_SOURCE), expf for _ZGVdN8v_expf (eight at once), else NAME
function base(name) {
    sub(/^(__isoc[0-9]+|_ZGV[a-zA-Z0-9]+)_/, "", name)
    if (name ~ /^__.+_(chk|2)$/)
        gsub(/^__|_(chk|2)$/, "", name)
    return name
}

# section TEXT -- a row of readelf's table of sections, split into name, size and flags
function section(text,    part, n) {
    sub(/^ *\[ *[0-9]+\] */, "", text)
    n = split(text, part, " ")
    name = part[1]
    size = part[5]
    flags = n == 10 ? part[7] : ""
    return n == 9 || n == 10
}

BEGIN {
    while ((getline line < ref) > 0)
        if (split(line, part, " ") == 8 && part[1] ~ /:$/ && part[5] == "GLOBAL" && part[7] != "UND")
            kind[part[8]] = part[4]
        else if (line ~ /^ *\[ *[0-9]+\] \./ && section(line)) {
            ref_size[name] = size
            ref_has[name, flags]
        }
}
FNR == 1 { file++ }
file == 1 && /\*$/ { glob[++n_globs] = substr($1, 1, length($1) - 1); next }
file == 1 { allowed[$1]; next }
file <= 3 && $1 == "DW.ref.__gxx_personality_v0" { next } # of a destructor
file == 2 && $2 ~ /^[A-TV-Z]$/ { wanted[$1]; next }
file == 3 && $2 ~ /^[Uwv]$/ {
    of = base($1)
    if (!may_use($1) && !may_use(of))
        complain("uses " of (of == $1 ? "" : " (" $1 " in the object)") ", which is not on the list of tests/grade/submission.txt",
                 "do without " (of ~ /^(GOMP|__kmpc)_/ ? "#pragma omp" : of) "; that list and the headers of the labs say what a solution may use")
}
file == 3 && $2 ~ /^[TDBRC]$/ {
    have[$1]
    if (!($1 in wanted) || !($1 in allowed)) # a learner's own tree has no other object to compare with
        complain("defines " $1 ", which this file of the handout does not", "call it something else, and make it static")
}
file == 3 && $2 ~ /^[WViu]$/ { complain("defines " $1 " as a weak or indirect symbol", "define it as a plain function") }
file == 4 && /^ *\[ *[0-9]+\] [^ ]/ && $2 != "0]" && !/NULL +0+ 0+/ {
    whole = section($0)
    number = $0
    gsub(/^ *\[ *|\].*/, "", number)
    code[number] = flags ~ /X/
    if (size ~ /[1-9a-f]......./)
        complain("has a section " name " of 256 MiB or more", "allocate large arrays when they are needed")
    if (name ~ /^\.(preinit|init|fini)_array|^\.(ctors|dtors|init|fini)/) {
        if (!(name in ref_size) || ref_size[name] != size)
            complain("has a function that runs before or after main (section " name ")",
                     "no __attribute__((constructor)) or destructor: work is done when a hook is called")
    } else if (!whole || (!((name, flags) in ref_has) &&
                          name !~ /^(\.rela?)?\.(text|data|bss|rodata|tdata|tbss|debug_[a-z_]+|eh_frame|init_array|fini_array)(\..*)?$/ &&
                          name !~ /^\.(group|symtab|strtab|shstrtab|gcc_except_table|llvm_addrsig|note\.GNU-stack|note\.gnu\.property)$/ &&
          !(name == ".comment" && flags == "MS")))
        complain("has a section " name, "no __attribute__((section)): leave to the compiler where things stand")
    else if (flags ~ /X/ && (name !~ /^\.text/ || flags ~ /W/))
        complain("has code in " name " (a nested function?)", "write plain functions and data, without __attribute__((section))")
    stack_seen = stack_seen || name == ".note.GNU-stack"
}
file == 4 && $1 ~ /^[0-9]+:$/ && $5 == "GLOBAL" && $8 in kind && $7 != "UND" && $4 != kind[$8] {
    complain("defines " $8 " as " $4 ", which the handout defines as " kind[$8], "declare it as the handout's file does")
}
file == 4 && $1 ~ /^[0-9]+:$/ && $4 == "OBJECT" && code[$7] {
    complain("has data among its code: " $8, "no __attribute__((section)): leave to the compiler where things stand")
}
END {
    for (name in wanted)
        if (!(name in have))
            complain("does not define " name, "keep every function of the handout's file, with its parameters")
    if (!stack_seen)
        complain("is no object of this compiler", "hand in plain C")
}
