#!/bin/bash
# trace.sh -- what --profile DIR writes about the traced steps: the traces of all ranks agree, the table agrees with the
# profile, and the pictures show all ranks on one clock.
. "$(dirname "$0")/lib.sh"
cli_start "$@"
dir=$work/new/profile
run='--n-layer 2 --d-model 32 --n-head 2 --seq-len 32 --batch-size 2 --synthetic 5000'

# steps DIR -- "step rank wall compute comm exposed" for each row of the table
steps() {
    sed -n 's/^| *\([0-9][0-9]*\) | *\([0-9][0-9]*\) | *\([0-9.]*\) | *\([0-9.]*\) | *\([0-9.]*\) | *\([0-9.]*\) |.*/\1 \2 \3 \4 \5 \6/p' \
        "$1/profile.md"
}

# check_table DIR RANKS STEPS -- steps from 1 on are in order, each with all ranks in order
check_table() {
    local ranks=$2 steps=$3 s r
    [ "$(steps "$1" | cut -d' ' -f1,2 | tr '\n' ' ')" = \
        "$(for ((s = 1; s <= steps; s++)); do for ((r = 0; r < ranks; r++)); do echo -n "$s $r "; done; done)" ] ||
        complain "steps and ranks: $(steps "$1" | tr '\n' ';')"
    steps "$1" | awk '!($3 > $4 && $4 > 0 && $5 >= 0 && $6 >= 0 && $4 + $6 < $3 + 0.01)' | grep -q . &&
        complain "a step does not add up: $(steps "$1")"
}

# Exposed communication of a rank: the profile's total equals the table's sum over its three steps.
check_exposed() {
    awk -F, -v rank="$1" '
        FILENAME ~ /csv$/ { if ($1 == "total" && $2 == "exposed") of_profile = 1e3 * $4; next }
        { split($0, f, " ") }
        f[2] == rank { of_table += f[6] }
        END { d = of_table - of_profile; exit !(d * d < 1e-4 && (of_table > 0)) }' \
        "$dir/profile-rank-$1.csv" <(steps "$dir") || complain "rank $1: exposed in table and profile differ"
}

# check_traces DIR RANKS -- each arrow has two ends, both at slices, and none points back in time. Each collective has a slice of
# the same name on all ranks of its group. Within the clocks' error, no rank ends it before all have begun it, because a rank
# needs the data of the others.
check_traces() {
    local dir=$1 rank files=()
    for ((rank = 0; rank < $2; rank++)); do
        files+=("$dir/trace-rank-$rank.json")
    done
    awk '
        function of(key,   text) {
            if (!match($0, "\"" key "\":(\"[^\"]*\"|[-0-9.a-z]+)"))
                return ""
            text = substr($0, RSTART + length(key) + 3, RLENGTH - length(key) - 3)
            gsub(/"/, "", text)
            return text
        }
        function wrong(what) { print what; bad = 1 }
        /"otherData"/ { if (of("clock_bound_us") + 0 > bound) bound = of("clock_bound_us") + 0 }
        !/"pid":/ { next }
        { ph = of("ph"); at = of("pid") "/" of("tid") "/" of("ts") }
        ph == "X" { begins[at] = 1; n_slices++ }
        ph == "s" { from[of("id")] = at; begun[of("id")] = of("ts") }
        ph == "f" { to[of("id")] = at; if (of("ts") + 0 < begun[of("id")] + 0) wrong("an arrow points back: " $0) }
        ph == "X" && of("cat") == "collective" {
            call = of("group") "/" of("sequence")
            n[call]++
            if (!(call in name)) { name[call] = of("name"); ranks[call] = of("ranks"); last[call] = of("ts"); early[call] = of("ts") + of("dur") }
            if (name[call] != of("name")) wrong(name[call] " and " of("name"))
            if (of("ts") + 0 > last[call] + 0) last[call] = of("ts")
            if (of("ts") + of("dur") < early[call] + 0) early[call] = of("ts") + of("dur")
        }
        END {
            for (id in from) if (!(id in to)) wrong("an arrow without an end: " id)
            for (id in to) if (!(id in from)) wrong("an arrow without a beginning: " id)
            for (id in from) if (!(from[id] in begins) || !(to[id] in begins)) wrong("no slice at the end of arrow " id)
            for (call in n) {
                if (n[call] != ranks[call]) wrong(name[call] ": " n[call] " ranks of " ranks[call])
                # 0.002: times are rounded to a nanosecond
                if (last[call] - early[call] > 2 * bound + 0.002)
                    wrong(name[call] ": one ends it " last[call] - early[call] " us before another begins it, the clocks are known to " bound " us")
            }
            if (!n_slices) wrong("no slices")
            exit bad
        }' "${files[@]}" >"$work/wrong" || complain "traces: $(head -3 "$work/wrong")"
}

# check_pictures DIR RANKS STEPS -- the text shows every rank in every step, over at least each rank's time. The picture of the
# last step shows the first four ranks
check_pictures() {
    local text=$1/timeline.txt svg=$1/timeline.svg
    [ "$(grep -c '^step [0-9]' "$text")" = "$3" ] && [ "$(grep -c '^ *[0-9]* compute |.*|$' "$text")" = $(($2 * $3)) ] ||
        complain "the text: $(cat "$text")"
    awk 'FILENAME ~ /txt$/ { if ($1 == "step") at = $2; if ($1 == "ms") window[at] = $NF; next }
        $3 > window[$1] + 0.1 { exit bad = 1 } END { exit bad }' "$text" <(steps "$1") || complain "a rank is cut off: $(cat "$text")"
    grep -q ">Step $3 on $(($2 < 4 ? $2 : 4)) rank" "$svg" && tail -1 "$svg" | grep -q '^</svg>$' || complain 'no svg'
    [ "$(grep -c '>compute</text>' "$svg")" = $(($2 < 4 ? $2 : 4)) ] || complain 'ranks of the svg'
    grep -q '<title>forward h' "$svg" && ! grep -qv '^<.*>$' "$svg" || complain "the svg: $(grep -v '^<.*>$' "$svg" | head -3)"
}

# traced W NAME OPTION... -- trains and checks the files
traced() {
    local ranks=$1 rank
    shift
    expect_good "$ranks" "$1" $run --steps 4 --profile "$dir" "${@:2}"
    grep -qx "profile: $dir/profile.md, timeline.txt, timeline.svg, trace-rank-.*.json for ui.perfetto.dev" "$work/out" ||
        complain 'it does not say what it wrote'
    check_table "$dir" "$ranks" 3
    check_traces "$dir" "$ranks"
    check_pictures "$dir" "$ranks" 3
    for ((rank = 0; rank < ranks; rank++)); do
        [ "$ranks" = 1 ] || check_exposed "$rank"
    done
}

traced 1 'one device' --parallel single
rm -rf "$dir"
traced 3 'FSDP'
traced 2 'FSDP, where three ranks were before' --sharding full
export FSDP_ASYNC_COMPUTE=1
traced 2 'FSDP, computing on a worker'
unset FSDP_ASYNC_COMPUTE
traced 2 'DDP' --parallel ddp
traced 2 'accumulating, canonical' --grad-accum 2 --reduction canonical
traced 5 'more ranks than are drawn'
# units OPERATION -- the units of its slices
units() {
    grep "^{\"name\":\"$1\"" "$dir/trace-rank-4.json" | sed 's/.*"unit":"\([^"]*\)".*/\1,/' | sort -u | tr -d '\n'
}
case_is 'updates are of units, what a step reports is of none'
[ "$(units adamw)" = 'h.0,h.1,root,' ] || complain "units of updates: $(units adamw)"
[ "$(units download)" = , ] || complain "units of losses and norms: $(units download)"

case_is 'the ranks as one trace' # the command of PROFILE.md
(cd "$work/new" && rm -rf out && cp -r profile out &&
    { head -n 1 out/trace-rank-0.json && grep -h '},$' out/trace-rank-*.json && tail -n 3 out/trace-rank-0.json; } >out/trace.json)
[ "$(grep -c '"ph":"X"' "$work/new/out/trace.json")" = "$(cat "$dir"/trace-rank-[0-4].json | grep -c '"ph":"X"')" ] ||
    complain 'it has other slices'
[ "$(grep -o '"ph":"s","id":[0-9]*' "$work/new/out/trace.json" | sort | uniq -d)" = '' ] || complain 'arrows share an id'
[ "$(grep -vc '},$' "$work/new/out/trace.json")" = 4 ] || complain 'a line is no event'

expect_good 2 'more steps than are kept' $run --steps 6 --profile "$dir"
check_table "$dir" 2 3
[ "$(grep -c '"cat":"step"' "$dir/trace-rank-0.json")" = 3 ] || complain 'the trace has more steps than three'

# A step that is too long for a timeline is cut off and not shown; the steps before it are shown.
launch 2 $run --n-layer 1 --steps 3 --grad-accum 2000 --seq-len 2 --d-model 2 --n-head 1 --vocab-size 8 --profile "$dir"
case_is 'a step of which a part is lost'
[ "$rc" = 0 ] && grep -q '"lost":[1-9]' "$dir/trace-rank-0.json" || complain "exit status $rc, $(tail -c 100 "$dir/trace-rank-0.json")"
grep -q 'note: rank 0: a step has more operations than a timeline holds' "$work/err" || complain 'nobody says so'
check_table "$dir" 2 $(($(grep -c '"cat":"step"' "$dir/trace-rank-0.json") - 1))

expect_good 2 'no step but the first: no pictures' $run --steps 1 --profile "$dir"
grep -qx "profile: $dir/profile.md" "$work/out" || complain 'it does not say what it wrote'
[ -z "$(ls "$dir" | grep timeline)" ] || complain "files: $(ls "$dir")"

# The second host's clock is 5 s slow.
case_is 'two hosts whose clocks differ'
if no_hosts "$name"; then
    n_skipped=$((n_skipped + 1))
else
    cat >"$work/behind.c" <<'EOF'
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t id, struct timespec *now)
{
    const char *rank = getenv("PMI_RANK");
    long failed = syscall(SYS_clock_gettime, id, now);
    if (id == CLOCK_MONOTONIC && rank && atoi(rank) >= 2)
        now->tv_sec -= 5;
    return (int)failed;
}
EOF
    ${CC:-cc} -shared -fPIC -o "$work/behind.so" "$work/behind.c" || complain 'no behind.so'
    rm -rf "$dir"
    MPIR_CVAR_NUM_CLIQUES=2 MPIR_CVAR_CLIQUES_BY_BLOCK=1 ends_with 0 $MPI_LAUNCHER -n 4 env LD_PRELOAD="$work/behind.so" \
        "$trainer" $run --steps 2 --profile "$dir"
    check_table "$dir" 4 1
    check_traces "$dir" 4
    check_pictures "$dir" 4 1
    grep -q '"clock_offset_us":0.000,"clock_bound_us":0.000' "$dir/trace-rank-0.json" || complain 'offset of rank 0'
    grep '"otherData"' "$dir/trace-rank-3.json" | tr -c '0-9.\n' ' ' |
        awk '{ offset = $(NF - 2); bound = $(NF - 1); d = offset - 5e6; exit !(bound > 0 && d * d <= (bound + 0.002) ^ 2) }' ||
        complain "offset of rank 3: $(grep '"otherData"' "$dir/trace-rank-3.json")"
    # A step of all ranks is no longer than the sum of the ranks' steps, plus the error of the clocks.
    awk 'FILENAME ~ /txt$/ { if ($1 == "ms") window = $NF; next } { sum += $3 } END { exit !(window <= sum + 2000) }' \
        "$dir/timeline.txt" <(steps "$dir") || complain "lanes are apart: $(cat "$dir/timeline.txt")"
fi

# The title names mode and link. With an axis of a minute, the step's boxes are at its left end.
FSDP_LINK=1Gbit,50us FSDP_PROFILE_AXIS_MS=60000 launch 2 $run --steps 3 --prefetch backward --profile "$dir"
case_is 'title and axis of the pictures'
grep -q '>Step 2 on 2 ranks, prefetch backward, link 1Gbit,50us: [0-9.]* ms</text>$' "$dir/timeline.svg" && grep -qx 'step 2 (prefetch backward, link 1Gbit,50us)' "$dir/timeline.txt" ||
    complain "titles: $(grep '>Step' "$dir/timeline.svg"; grep '^step' "$dir/timeline.txt")"
grep -q '>60000</text>' "$dir/timeline.svg" && [ "$(awk '$1 == "ms" { print $NF }' "$dir/timeline.txt" | tail -1)" = 60000.0 ] ||
    complain "axis: $(grep '^ *ms' "$dir/timeline.txt")"

# A directory that cannot be written is refused before training.
echo text >"$work/new/file"
refused 2 '--profile on a file' '--profile .*: Not a directory' '' --steps 4 --profile "$work/new/file"
untrained
cli_end
