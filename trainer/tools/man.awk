# man.awk -- turns a program's --help (options_print_help, or plain lines) into a man page.
#
#   PROGRAM --help | awk -v name=PROGRAM -v day=2026-01-31 -f man.awk
#
# The lines of --help are: "Usage: ...", the description, and after an empty line groups, options and their descriptions from
# column 30 on.

# roff TEXT -- the text with what roff would interpret escaped
function roff(text) {
    gsub(/\\/, "\\e", text)
    gsub(/-/, "\\-", text)
    return roff_start(text)
}
function roff_start(text) { return (text ~ /^[.']/ ? "\\&" : "") text }
# flow TEXT -- print it as input lines of at most 80 characters
function flow(text, at) {
    text = roff(text)
    while (length(text) > 80) {
        for (at = 80; at > 1 && substr(text, at, 1) != " "; at--) {}
        print substr(text, 1, at - 1)
        text = roff_start(substr(text, at + 1))
    }
    print text
}
function section(title) { if (title != open) print ".SH " title; open = title }

BEGIN {
    printf ".TH %s 1 %s \"FSDP Labs\" \"User Commands\"\n", toupper(name), day
    does["fsdp_compare"] = "compare losses or digests of two runs bit by bit"
    does["fsdp_generate"] = "continue a text with a trained model"
    does["fsdp_run"] = "start the ranks of a program on this host"
    does["fsdp_train"] = "train a model on one device or sharded over many (FSDP)"
    print ".SH NAME\n" name " \\- " does[name]
}
/^Usage: / { sub(/^Usage: [^ ]* */, ""); section("SYNOPSIS"); print ".B " roff(name) "\n" roff($0); next }
/^$/ { in_options = 1; next }
!in_options { section("DESCRIPTION"); flow($0); next }
/^[^ ].*:$/ { section("OPTIONS"); sub(/:$/, ""); print ".SS " roff($0); next }
/^  --/ {
    section("OPTIONS")
    option = $1
    sub(/^  [^ ]+ */, "")
    print ".TP\n.B " roff(option)
    if ($0 != "") flow($0)
    next
}
{ sub(/^ +/, ""); flow($0) }
