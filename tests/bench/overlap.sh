#!/bin/bash
# overlap.sh [BUILD] -- what overlap is worth: the lecture's experiment, measured.
#
# A GPT-2 of 12 blocks with byte tokens on 2 ranks of one thread each, over a link of 1 Gbit/s (FSDP_LINK), so that a block
# computes longer than it is gathered. Four tables: the modes of --prefetch; a host that runs ahead, by limit and with a host sync behind
# every unit; buckets; and shared memory without a link, in turns. Every figure but those of the last table comes from the traces of
# nine steps (build/fsdp_trace): the median of the steps, each by its slowest rank. OVERLAP_LINK, OVERLAP_GBIT and OVERLAP_US
# change the link; OVERLAP_SIZE the model.
set -u
. "${0%/*}/lib.sh"
title "overlap: prefetch, limit, host syncs, buckets"
D=$OUT/overlap
LINK=${OVERLAP_LINK:-1Gbit,50us} GBIT=${OVERLAP_GBIT:-1} US=${OVERLAP_US:-50}
read -ra model <<<"${OVERLAP_SIZE:---n-layer 12 --n-head 4 --d-model 256 --vocab-size 256 --seq-len 256 --batch-size 8}"
rm -rf "$D" && mkdir -p "$D" || exit 1
export OMP_NUM_THREADS=1

# train LINK OPTION... -- two ranks; LINK "-": none
train() {
    local link=$1
    shift
    [ "$link" = - ] && link=''
    FSDP_LINK=$link "$BUILD/fsdp_run" -n 2 --no-prefix "$BUILD/fsdp_train" "${model[@]}" "$@"
}

# traced NAME LINK OPTION... -- "wall compute communication exposed overlap" of a step, by the trace; FSDP_* of the caller hold
traced() {
    local name=$1 link=$2
    shift 2
    train "$link" --steps 10 --profile "$D/$name" "$@" >"$D/$name.log" 2>&1 || fail "overlap: $name failed" "see $D/$name.log"
    "$BUILD/fsdp_trace" "$D/$name" >"$D/$name.txt" || fail "overlap: the traces of $name are broken" "see $D/$name.txt"
    awk '$1 ~ /^[0-9]+$/ { if (!($1 in wall)) order[++n] = $1
            if ($3 > wall[$1]) { wall[$1] = $3; row[$1] = $3 " " $4 " " $5 " " $6 } }
        END { for (i = 1; i <= n; i++) print row[order[i]] }' "$D/$name.txt" | sort -g |
        awk '{ row[NR] = $0 } END { split(row[int((NR + 1) / 2)], x, " ")
            printf "%.0f %.0f %.0f %.0f %.0f", x[1], x[2], x[3], x[4], 100 * (1 - x[4] / x[3]) }'
}

# virtual NAME [--ahead] -- the median ratio of virtual to measured time of its steps
virtual() {
    local name=$1
    shift
    "$BUILD/fsdp_trace" "$D/$name" --link-gbit "$GBIT" --link-us "$US" "$@" |
        awk 'recorded && $1 ~ /^[0-9]+$/ { print $4 } /recorded ms/ { recorded = 1 }' | quartiles | cut -d' ' -f1
}

head='step ms,compute,communication,exposed,overlap %,exposed % of step'
# row LABEL,... -- of "wall compute communication exposed overlap" on stdin
row() { awk -v label="$1" '{ printf "%s,%d,%d,%d,%d,%d,%.1f\n", label, $1, $2, $3, $4, $5, 100 * $4 / $1 }'; }

say 'prefetch, inline compute'
echo "prefetch,$head,virtual / measured" >"$D/modes.csv"
for mode in none backward-post backward forward both; do
    line=$(traced "mode-$mode" "$LINK" --prefetch "$mode" | row "$mode")
    echo "$line,$(virtual "mode-$mode")" >>"$D/modes.csv"
done
train "$LINK" --prefetch both --plan >"$D/plan.txt" 2>&1 || fail 'overlap: the plan failed' "see $D/plan.txt"

say 'a host that runs ahead'
echo "prefetch,limit,host sync,$head,virtual / measured" >"$D/ahead.csv"
export FSDP_ASYNC_COMPUTE=1
for case in 'backward 1 0' 'backward 2 0' 'backward 3 0' 'both 1 0' 'both 2 0' 'backward 2 1' 'both 2 1'; do
    read -r mode limit sync <<<"$case"
    name=ahead-$mode-$limit-$sync
    line=$(FSDP_HOST_SYNC=$sync traced "$name" "$LINK" --prefetch "$mode" --limit-all-gathers "$limit" |
        row "$mode,$limit,$([ "$sync" = 1 ] && echo 'every unit' || echo none)")
    echo "$line,$(virtual "$name" --ahead)" >>"$D/ahead.csv"
done
unset FSDP_ASYNC_COMPUTE

say 'buckets'
echo "bucket,$head" >"$D/buckets.csv"
for bucket in block 1600000 3200000 auto; do
    traced "bucket-$bucket" "$LINK" --prefetch both --bucket "$bucket" | row "$bucket" >>"$D/buckets.csv"
done

say 'shared memory, in turns'
turns=$([ -n "$FULL" ] && echo 9 || echo 4)
# memory NAME RANKS STEPS OPTION... -- none, both, none, both ...; the first three steps of a run are cold
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
"$BUILD/fsdp_trace" "$D/mode-both" --svg "$OUT/overlap-both.svg" >/dev/null
"$BUILD/fsdp_trace" "$D/mode-none" --svg "$OUT/overlap-none.svg" >/dev/null
{
    echo '## overlap'
    echo
    echo "2 ranks of one thread, \`FSDP_LINK=$LINK\`, \`fsdp_train ${model[*]}\`, $(lscpu | sed -n 's,^Model name: *,,p' | head -1), $CORES cores. Medians of nine traced steps, milliseconds."
    echo
    table "$D/modes.csv"
    echo
    echo "The floor by plan (\`--plan --prefetch both\`): $(sed -n 's/.*no schedule leaves less than \(.*\)/\1 ms/p' "$D/plan.txt")."
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
