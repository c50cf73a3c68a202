#!/bin/bash
# threads.sh CSV COMMAND... -- runs training that writes its losses to CSV; prints a row for each of its threads, by CPU time.
#
#   | thread | ms of user code in a step | ms of system calls in a step |
#
# Several threads of one name are one row. The times are differences between two looks at /proc/PID/task/*/stat: the first one
# after three steps, and the last one before CSV is complete (until then its lines are in CSV.X.tmp). They count in units of
# 10 ms, so the run should make many steps. Threads that start or end in between are left out.
set -u
csv=$1
shift
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
steps() { cat "$csv".*.tmp 2>/dev/null | grep -c '^[0-9]'; }
rm -f "$csv"
"$@" >"$work/log" 2>&1 &
pid=$!
while kill -0 $pid 2>/dev/null; do
    n=$(steps)
    if [ "$n" -ge 3 ]; then
        { echo "$n" && cat /proc/$pid/task/*/stat; } >"$work/look" 2>/dev/null
        [ -s "$work/first" ] || cp "$work/look" "$work/first"
        [ "$(steps)" -lt "$n" ] || mv "$work/look" "$work/last"
    fi
    sleep 0.1
done
wait $pid || { rc=$? && tail -3 "$work/log" && exit $rc; }
[ -s "$work/last" ] || { echo 'FAILED: the run was too short to look at' && exit 1; }
# Fields from the state on follow the name, which is in parentheses and may hold spaces: user time is the 12th of them.
awk -v ticks="$(getconf CLK_TCK)" -v main="$pid" '
    FNR == 1 { n_steps = $1 - n_steps; next }
    {
        name = tid = $0
        sub(/ .*/, "", tid)
        sub(/^[^(]*\(/, "", name)
        sub(/\)[^)]*$/, "", name)
        sub(/^.*\) /, "")
        if (FILENAME == ARGV[1]) { user[tid] = $12; system_[tid] = $13; next }
        if (!(tid in user)) next
        name = name (tid == main ? ", the main thread" : "")
        n[name]++
        of_user[name] += $12 - user[tid]
        of_system[name] += $13 - system_[tid]
    }
    END {
        if (n_steps < 1) { print "FAILED: the run was too short to look at"; exit 1 }
        for (name in n)
            printf "%d\t| %s%s | %.1f | %.1f |\n", of_user[name] + of_system[name], name, (n[name] > 1 ? " (" n[name] ")" : ""),
                1e3 * of_user[name] / ticks / n_steps, 1e3 * of_system[name] / ticks / n_steps
    }' "$work/first" "$work/last" >"$work/rows"
rc=$?
sort -k1,1nr "$work/rows" | cut -f2
exit $rc
