# results.awk -- write the results of whole labs for other programs.
#
#   awk -f tests/grade/results.awk -v format=json|xml -v labs="1 2" -v seconds=S tests/grade/tasks.txt RESULTS
#
#   json   Gradescope's results.json: a test per task, with its points. Tasks after "# hidden" in the table are shown when
#          grades are published
#   xml    JUnit's format: a test case per task and world size
#
# RESULTS: from grade.sh, tab-separated: "task W verdict", seconds, text; "task W -" for lines below a verdict. The
# programs print ASCII; any other byte, such as from a crash, becomes '?'.

# shown TEXT -- TEXT with only the characters that both formats allow
function shown(s) { gsub(/[^ -~\n]/, "?", s); return s }
# put S OLD NEW -- S with each match of the regular expression OLD replaced by NEW. gsub treats backslashes differently in
# different awks
function put(s, old, new,    n, i, part, all) {
    n = split(s, part, old)
    all = part[1]
    for (i = 2; i <= n; i++) all = all new part[i]
    return all
}
function json(s) { return "\"" put(put(put(shown(s), "[\\\\]", "\\\\"), "\"", "\\\""), "\n", "\\n") "\"" }
function xml(s) {
    s = shown(s)
    gsub(/&/, "\\&amp;", s); gsub(/</, "\\&lt;", s); gsub(/>/, "\\&gt;", s); gsub(/"/, "\\&quot;", s); gsub(/\n/, "\\&#10;", s)
    return s
}

BEGIN {
    n_labs = split(labs, list, " ")
    for (i = 1; i <= n_labs; i++) is_graded[list[i]] = 1
}
FNR == 1 { file++ }
file == 1 && /^# hidden$/ { hidden = 1 }
file == 1 && !/^#/ && NF {
    split($1, id, ".")
    if (!(id[1] in is_graded)) next
    task[++n_tasks] = $1
    lab[$1] = id[1]
    is_hidden[$1] = hidden
    points[$1] = $2
    $2 = $3 = $4 = $5 = $6 = ""
    sub(/^[^ ]+ +/, "")
    title[task[n_tasks]] = $0
}
file == 2 {
    split($0, column, "\t")
    split(column[1], key, " ")
    if (key[3] == "-") {
        output[key[1]] = output[key[1]] "\n" column[3]
        below[run] = below[run] "\n" column[3]
        next
    }
    run = key[1] SUBSEP key[2]
    verdict[run] = key[3]
    said[run] = column[3]
    took[run] = column[2]
    worlds[key[1]] = worlds[key[1]] " " key[2]
    output[key[1]] = output[key[1]] (output[key[1]] == "" ? "" : "\n") key[3] " on " key[2] (key[2] == 1 ? " rank: " : " ranks: ") column[3]
    if (key[3] ~ /^(TODO|BLOCKED)$/ && points[key[1]] == 0) untouched[key[1]] = 1
}

function passes(t) { return verdict[t, 2] == "PASS" && verdict[t, 3] == "PASS" && verdict[t, 4] == "PASS" }

function print_json(    i, t, sum, all) {
    for (i = 1; i <= n_tasks; i++) { all += points[task[i]]; sum += passes(task[i]) ? points[task[i]] : 0 }
    printf "{\n  \"score\": %d,\n  \"execution_time\": %d,\n", sum, seconds
    printf "  \"output\": %s,\n  \"tests\": [", json("labs " labs ": " sum " of " all " points")
    for (i = 1; i <= n_tasks; i++) {
        t = task[i]
        printf "%s\n    {\"number\": %s, \"name\": %s, \"score\": %d, \"max_score\": %d, ", (i > 1 ? "," : ""), json(t), json(title[t]), (passes(t) ? points[t] : 0), points[t]
        if (!(t in untouched)) printf "\"status\": \"%s\", ", passes(t) ? "passed" : "failed"
        if (is_hidden[t]) printf "\"visibility\": \"after_published\", "
        printf "\"output\": %s}", json(output[t])
    }
    print "\n  ]\n}"
}

# One case: task t on w ranks. TODO and BLOCKED of a task without points count as skipped. Any other verdict except PASS and SKIP is a
# failure.
function print_case(t, w,    v, run) {
    run = t SUBSEP w
    v = verdict[run]
    printf "    <testcase classname=\"lab%s\" name=\"%s\" time=\"%s\"", lab[t], xml(t " " title[t] " (W=" w ")"), took[run] + 0
    if (v == "PASS") print "/>"
    else if (v == "SKIP" || t in untouched) printf "><skipped message=\"%s\"/></testcase>\n", xml(v " " said[run])
    else printf "><failure type=\"%s\" message=\"%s\">%s</failure></testcase>\n", v, xml(said[run]), xml(said[run] below[run])
}

function print_xml(    i, k, l, t, w, n, n_cases, n_failed, n_skipped) {
    printf "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites time=\"%d\">\n", seconds
    for (l = 1; l <= n_labs; l++) {
        n_cases = n_failed = n_skipped = 0
        for (i = 1; i <= n_tasks; i++) {
            t = task[i]
            n = lab[t] == list[l] ? split(worlds[t], w, " ") : 0
            n_cases += n
            for (k = 1; k <= n; k++)
                if (verdict[t, w[k]] == "SKIP" || t in untouched) n_skipped++
                else if (verdict[t, w[k]] != "PASS") n_failed++
        }
        printf "  <testsuite name=\"lab%s\" tests=\"%d\" failures=\"%d\" errors=\"0\" skipped=\"%d\">\n", list[l], n_cases, n_failed, n_skipped
        for (i = 1; i <= n_tasks; i++) {
            n = lab[task[i]] == list[l] ? split(worlds[task[i]], w, " ") : 0
            for (k = 1; k <= n; k++) print_case(task[i], w[k])
        }
        print "  </testsuite>"
    }
    print "</testsuites>"
}

END { if (format == "json") print_json(); else print_xml() }
