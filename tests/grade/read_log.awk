# read_log.awk -- what the log of a launch says about one task. grade_lib.h and watchdog_lib.h describe the lines of a log.
#
#   awk -f tests/grade/read_log.awk -v t=TASK -v want=WHAT LOG
#
#   verdict  "PASS 2 0.1": the verdict or "-", the ranks with a done-marker, seconds
#   text     the words after the verdict
#   reason   "rank 1: what[3]: got 1, expected 2": of the rank that failed its own check or died; empty if none did
#   stack    stack of that rank if it died: the program, then offset=function ..., the innermost first
#   below    more lines about that rank: the calls of ranks that disagree, its last calls, who waits for it, its hint

# own RANKFAIL's word -- a lower number is more likely the cause: if a rank dies or hangs, the others lose a peer and fail too.
# A waiting rank may wait for another rank.
function own(word) {
    if (word ~ /^(SIG|EXIT|LOOP)/) return 0
    if (word == "WAIT") return 2000
    if (word ~ /ECOMM|EMISMATCH|ETIMEOUT/) return 3000
    return 1000
}

# words_after N -- the line without its first N words
function words_after(n,    rest) {
    rest = $0
    while (n-- > 0) sub(/^[^ ]+ ?/, "", rest)
    return rest
}

$1 == "VERDICT" && $2 == t "" && verdict == "" { verdict = $3; text = words_after(3) }
$1 == "DONE" && $2 == t "" { marks++ }
$1 == "TIME" && $2 == t "" { seconds = $3 }
$1 == "RANKFAIL" && $2 == t "" {
    if (rank == "" || own($4) + $3 < best) { best = own($4) + $3; rank = $3; word = $4; why = words_after(4) }
    if ($4 == "FSDP_EMISMATCH" && mismatch == "") mismatch = words_after(4)
    if ($4 == "FSDP_ETIMEOUT" && late == "" && $0 !~ / reports: /) late = words_after(4)
}
$1 == "RANKSTACK" && $2 == t "" { stack[$3] = words_after(3) }
$1 == "RANKHINT" && $2 == t "" { hint[$3] = words_after(3) }
/^\[rank [0-9]+\] last calls/ { caller = $2 + 0; next }
/^  .* [0-9]+ ranks  / && caller != "" {
    call = $0
    sub(/^ +/, "", call)
    state = call
    sub(/ +[0-9]+ ranks .*/, "", call)
    sub(/.* ranks  /, "", state)
    sub(/ .*/, "", state)
    if (call !~ /^(comm_|agree)/) calls[caller, ++n_calls[caller]] = call (state == "done" ? "" : ", " state)
    next
}
{ caller = "" }

END {
    if (want == "verdict") print (verdict == "" ? "-" : verdict), marks + 0, (seconds == "" ? "-" : seconds)
    if (want == "text") print text
    if (want == "stack" && rank != "") print stack[rank]
    if (want == "reason" && rank != "") print "rank " rank ": " (own(word) == 3000 ? word " " : "") why
    if (want == "reason" && rank == "" && verdict == "FAIL") print text
    if (want == "below" && rank != "") {
        if (mismatch != "") print substr(mismatch, 1, 200)
        if (word !~ /^FSDP_/ || word == "FSDP_ETIMEOUT")
            for (i = n_calls[rank] > 3 ? n_calls[rank] - 2 : 1; i <= n_calls[rank]; i++)
                print (i == n_calls[rank] ? "the last call of rank " rank ": " : "a call before: ") calls[rank, i]
        if (word ~ /^(LOOP|WAIT)$/ && late != "") print late
        if (hint[rank] != "" && word ~ /^FSDP_/) print "HINT: " hint[rank]
    }
}
