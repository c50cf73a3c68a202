#!/bin/bash
# overlap.sh [BUILD] -- what overlap saves: the lecture's experiment, measured.
#
# A GPT-2 of 12 blocks with byte tokens on 2 ranks with one thread each, over a link of 1 Gbit/s (FSDP_LINK), so that computing a
# block takes longer than gathering it. Four tables: the modes of --prefetch; a host that runs ahead, by limit, and with a host
# sync after every unit; buckets; shared memory without a link, in turns. Every figure except in the last table is the median of
# nine steps, each timed on its slowest rank: --profile traces three steps in each of three runs (profile.md). OVERLAP_LINK
# changes the link, OVERLAP_SIZE the model.
set -u
. "${0%/*}/lib.sh"
title "overlap: prefetch, limit, host syncs, buckets"
D=$OUT/overlap
LINK=${OVERLAP_LINK:-1Gbit,50us}
read -ra model <<<"${OVERLAP_SIZE:---n-layer 12 --n-head 4 --d-model 256 --vocab-size 256 --seq-len 256 --batch-size 8}"
rm -rf "$D" && mkdir -p "$D" || exit 1
export OMP_NUM_THREADS=1

# train LINK OPTION... -- train on two ranks; LINK "-": no link
train() {
    local link=$1
    shift
    [ "$link" = - ] && link=''
    FSDP_LINK=$link "$BUILD/fsdp_run" -n 2 --no-prefix "$BUILD/fsdp_train" "${model[@]}" "$@"
}

# traced NAME LINK OPTION... -- print "wall compute communication exposed overlap" of a step; uses the caller's FSDP_* variables
traced() {
    local name=$1 link=$2 turn
    shift 2
    for turn in 1 2 3; do
        train "$link" --steps 4 --profile "$D/$name" "$@" >"$D/$name.log" 2>&1 || fail "overlap: $name failed" "see $D/$name.log"
        cp "$D/$name/profile.md" "$D/$name-$turn.md"
    done
    awk -F'|' '$2 ~ /^ *[0-9]+ $/ { step = FILENAME $2; if (!(step in wall)) order[++n] = step
            if ($4 + 0 > wall[step]) { wall[step] = $4 + 0; row[step] = $4 + 0 " " $5 + 0 " " $6 + 0 " " $7 + 0 } }
        END { for (i = 1; i <= n; i++) print row[order[i]] }' "$D/$name"-[123].md | sort -g |
        awk '{ row[NR] = $0 } END { split(row[int((NR + 1) / 2)], x, " ")
            printf "%.0f %.0f %.0f %.0f %.0f", x[1], x[2], x[3], x[4], 100 * (1 - x[4] / x[3]) }'
}

head='step ms,compute,communication,exposed,overlap %,exposed % of step'
# row LABEL,... -- print a row from "wall compute communication exposed overlap" on stdin
row() { awk -v label="$1" '{ printf "%s,%d,%d,%d,%d,%d,%.1f\n", label, $1, $2, $3, $4, $5, 100 * $4 / $1 }'; }

say 'prefetch, inline compute'
echo "prefetch,$head" >"$D/modes.csv"
for mode in none backward-post backward forward both; do
    traced "mode-$mode" "$LINK" --prefetch "$mode" | row "$mode" >>"$D/modes.csv"
done
# Both pictures cover the same time: a little longer than a step without overlap.
for mode in none both; do
    FSDP_PROFILE_AXIS_MS=$(awk -F, '$1 == "none" { print 1.05 * $2 }' "$D/modes.csv") \
        train "$LINK" --steps 4 --profile "$D/picture-$mode" --prefetch "$mode" >"$D/picture-$mode.log" 2>&1 ||
        fail "overlap: the picture of $mode failed" "see $D/picture-$mode.log"
    cp "$D/picture-$mode/timeline.svg" "$OUT/overlap-$mode.svg"
done
train "$LINK" --prefetch both --plan --plan-device this >"$D/plan.txt" 2>&1 || fail 'overlap: the plan failed' "see $D/plan.txt"

say 'a host that runs ahead'
echo "prefetch,limit,host sync,$head" >"$D/ahead.csv"
export FSDP_ASYNC_COMPUTE=1
for case in 'backward 1 0' 'backward 2 0' 'backward 3 0' 'both 1 0' 'both 2 0' 'backward 2 1' 'both 2 1'; do
    read -r mode limit sync <<<"$case"
    name=ahead-$mode-$limit-$sync
    FSDP_HOST_SYNC=$sync traced "$name" "$LINK" --prefetch "$mode" --limit-all-gathers "$limit" |
        row "$mode,$limit,$([ "$sync" = 1 ] && echo 'every unit' || echo none)" >>"$D/ahead.csv"
done
unset FSDP_ASYNC_COMPUTE

say 'buckets'
echo "bucket,$head" >"$D/buckets.csv"
for bucket in block 1600000 3200000 auto; do
    traced "bucket-$bucket" "$LINK" --prefetch both --bucket "$bucket" | row "$bucket" >>"$D/buckets.csv"
done

say 'shared memory, in turns'
turns=$([ -n "$FULL" ] && echo 9 || echo 4)
# memory NAME RANKS STEPS OPTION... -- run none, both, none, both ...; the first three steps of a run are cold
memory() {
    local name=$1 ranks=$2 steps=$3 mode i median q1 q3 n none=1
    shift 3
    rm -f "$D"/shm-*.txt
    for ((i = 0; i < turns; i++)); do
        for mode in none both; do
            "$BUILD/fsdp_run" -n "$ranks" --no-prefix "$BUILD/fsdp_train" "$@" --steps "$steps" --prefetch "$mode" \
                --loss-csv "$D/shm.csv" >"$D/shm.log" 2>&1 || fail "overlap: $name, $mode failed" "see $D/shm.log"
            awk -F, 'NR > 4 { print $5 }' "$D/shm.csv" >>"$D/shm-$mode.txt"
        done
    done
    for mode in none both; do
        read -r median q1 q3 n < <(quartiles <"$D/shm-$mode.txt")
        [ "$mode" = none ] && none=$median
        awk -v l="$name,$ranks,$mode" -v m="$median" -v a="$q1" -v b="$q3" -v n="$n" -v o="$none" \
            'BEGIN { printf "%s,%.2f,%.2f,%.2f,%d,%.3f\n", l, m, a, b, n, m / o }' >>"$D/memory.csv"
    done
}
echo 'model,ranks,prefetch,step ms,q1,q3,steps,beside none' >"$D/memory.csv"
memory '12 blocks' 2 7 "${model[@]}"
memory 124m 2 7 --size 124m --seq-len 64 --batch-size 2
for ranks in 2 4; do
    memory small $ranks 30 --size small --seq-len 64 --batch-size $((8 / ranks))
    memory tiny $ranks 200 --size tiny
done

plot overlap <<EOF
set style data histogram; set style histogram rowstacked; set style fill solid border -1; set boxwidth 0.7
set ylabel 'ms of a step'; set key outside top; set xtics rotate by -20
set title 'A step over $LINK, 2 ranks: computing, and waiting for communication'
plot '$D/modes.csv' using (\$2-\$5):xtic(1) title 'everything else', '' using 5 title 'exposed communication'
EOF
{
    echo '## overlap'
    echo
    echo "2 ranks of one thread, \`FSDP_LINK=$LINK\`, \`fsdp_train ${model[*]}\`, $(lscpu | sed -n 's,^Model name: *,,p' | head -1), $CORES cores. Medians of nine traced steps, milliseconds."
    echo
    table "$D/modes.csv"
    echo
    echo "The floor by plan (\`--plan --plan-device this --prefetch both\`): $(sed -n 's/.*no schedule leaves less than \(.*\)/\1 ms/p' "$D/plan.txt")."
    echo
    echo "A host that runs ahead (\`FSDP_ASYNC_COMPUTE=1\`), by limit; \"every unit\" is \`FSDP_HOST_SYNC=1\`:"
    echo
    table "$D/ahead.csv"
    echo
    echo "Buckets, \`--prefetch both\`:"
    echo
    table "$D/buckets.csv"
    echo
    echo "Shared memory without a link, runs in turns:"
    echo
    table "$D/memory.csv"
} >"$OUT/overlap.md"
cp "$D/modes.csv" "$OUT/overlap.csv"
cat "$OUT/overlap.md"
