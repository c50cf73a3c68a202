# hints.awk -- the hints in C sources that name an option or a program: "FILE<tab>TEXT", one a line. hints.sh follows them.
#
#   awk -f hints.awk FILE...
#
# Every string literal that names one is taken for a hint, except
#   the third and later arguments of fsdp_error, which are its message, and what else is printed, unless it begins with "HINT: "
#   the help of options, and words alone, such as the name of an option
# Neighbouring literals are one text; a macro of the same file stands for its text, and any other word between them for %s.
# The arguments of options_lack become the hint that it makes of them, and so does each rule in `.needs` of an option.
BEGIN { OFS = "\t" }

FNR == 1 {
    depth = in_comment = 0
    was = before = word = text = source = rule = lacking = ""
    split("", macro)
}

{
    line = $0
    sub(/\\$/, "", line)
    while (line != "") {
        if (in_comment) {
            if (!(at = index(line, "*/")))
                break
            line = substr(line, at + 2)
            in_comment = 0
        }
        if (!match(line, /"([^"\\]|\\.)*"|'([^'\\]|\\.)*'|\/\*|\/\/|[A-Za-z_][A-Za-z_0-9]*|[^ \t]/))
            break
        token = substr(line, RSTART, RLENGTH)
        line = substr(line, RSTART + RLENGTH)
        if (token == "//")
            break
        if (token == "/*")
            in_comment = 1
        else
            take(token)
    }
    if ($0 ~ /^#define/ && $0 !~ /\\$/)
        end_text()
}

function take(token) {
    if (token ~ /^"/ || token in macro)
        add(token in macro ? macro[token] : substr(token, 2, length(token) - 2))
    else if (text != "" && token ~ /^[A-Za-z_]/)
        text = text "%s"
    else {
        end_text()
        if (token == "}")
            end_rule()
        if (token == "(") {
            call[++depth] = was
            n_commas[depth] = 0
        } else if (token == ")")
            depth--
        else if (token == ",")
            n_commas[depth]++
        else if (token == ";")
            depth = 0
        before = was
        was = token
        if (token ~ /^[A-Za-z_]/)
            word = token
    }
}

function add(more) {
    if (text == "")
        source = was == "=" ? word : "" # what it is the value of
    text = text more
}

function end_text() {
    if (text == "")
        return
    if (before == "define")
        macro[was] = text
    else if (source == "name" || call[depth] == "OPTION")
        name = text
    else if (source == "rule") {
        rule = "%s"
        at = ""
    } else if (source == "says")
        rule = text
    else if (source == "at")
        at = " " text
    else if (call[depth] == "options_lack" && n_commas[depth] == 0)
        lacking = text
    else if (call[depth] == "options_lack")
        print FILENAME, "pass " text ", or leave " lacking " out"
    else if (is_hint())
        print FILENAME, text
    text = ""
}

function is_hint() {
    if (text !~ /--[a-z%]|build\/fsdp/ || text !~ / / || text ~ /^HINT: /)
        return text ~ /^HINT: .*--/
    if (call[depth] == "fsdp_error")
        return n_commas[depth] == 1
    return source !~ /^(help|DOC|why)$/ && call[depth] !~ /printf$|^puts$|^options_print_help$/ || call[depth] == "snprintf"
}

# The end of a rule of the option `name`.
function end_rule() {
    if (rule != "")
        print FILENAME, "pass " rule ", or leave --" name at " out"
    rule = ""
}
