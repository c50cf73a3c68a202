#!/bin/sh
# demo.sh [BUILD] [mnist] -- trains on one device, trains the same by FSDP on several ranks, and compares both.
#
# Trains a small GPT-2 on the licence texts twice with the same global batch. Then shows the losses
# side by side, whether losses, gradient norms and weights have the same bits, what a rank holds and
# sends compared with the plan, the curves, and text from the trained model. All files are in
# $BUILD/demo/. Exit status 0 only if both runs have the same bits.
# mnist: PyTorch's FSDP tutorial, in $BUILD/demo-mnist/: its MNIST network and its recipe, two epochs of drawn digits, or of
# MNIST's own files if MNIST is their folder. Also runs DDP, and shows a test set's scores after each quarter of an epoch.
# DEMO_RANKS (4), DEMO_STEPS and DEMO_OPTIONS (options of build/fsdp_train) change what is run.
# shellcheck disable=SC2086 # lists of words
set -u
cd "$(dirname "$0")/../.." || exit 2
BUILD=${1:-build}
case ${2:-} in
mnist)
    OUT=$BUILD/demo-mnist runs='single ddp fsdp' epoch=${MNIST:+938} epoch=${epoch:-128}
    STEPS=${DEMO_STEPS:-$((2 * epoch))}
    OPTIONS=${DEMO_OPTIONS:---model mnist --global-batch 64 --optimizer adadelta --lr 1 --lr-schedule step --lr-step-size $epoch
         --lr-gamma 0.7 --warmup-steps 0 --clip-grad 0 --wrap size:20000 --eval-every $((epoch / 4))
         ${MNIST:+--data $MNIST --val-data $MNIST} $([ -n "${MNIST:-}" ] || echo "--synthetic $((64 * epoch)) --val-data digits --eval-batches 32")}
    ;;
'')
    OUT=$BUILD/demo runs='single fsdp'
    STEPS=${DEMO_STEPS:-800}
    OPTIONS=${DEMO_OPTIONS:---size small --n-layer 2 --d-model 128 --n-head 4 --seq-len 64 --global-batch 16
         --lr 2e-3 --min-lr 2e-4 --warmup-steps 50}
    ;;
*)
    echo "demo.sh: got '$2', expected mnist, or nothing" >&2
    echo 'HINT: make demo, or make demo-mnist' >&2
    exit 2
    ;;
esac
case "$OPTIONS" in
*--data* | *--synthetic*) ;;
*) [ -d /usr/share/common-licenses ] || OPTIONS="$OPTIONS --data WRITEUP.md" ;; # only Debian and its kin have the licence texts
esac
RANKS=${DEMO_RANKS:-4}
. tests/tools/env.sh
rm -rf "$OUT" && mkdir -p "$OUT" || exit 1
begun=$(date +%s)

title() { printf '\n== %s\n' "$1"; }

# train NAME LAUNCHER... -- one run. Its tables of memory and traffic are shown at the end, so they are cut from a log here.
# On a terminal the trainer writes directly, so that it can redraw its progress line.
train() {
    name=$1
    shift
    set -- "$@" $OPTIONS --steps "$STEPS" --reduction canonical --loss-csv "$OUT/$name.csv" \
        --memory-report "$OUT/$name-memory.csv" --export "$OUT/$name"
    echo "$*" | fold -s -w 110 | sed '2,$s/^/      /'
    if [ -t 1 ] && [ "$runs" = 'single fsdp' ]; then
        "$@" </dev/null
        return
    fi
    { "$@" </dev/null; echo $? >"$OUT/status"; } | tee "$OUT/$name.log" | sed -u '/^peak memory/,/^done/{/^done/!d}'
    return "$(cat "$OUT/status")"
}

fail() {
    echo "demo: $1" >&2
    echo "HINT: $2" >&2
    exit 1
}

title "1. One device"
train single "$BUILD/fsdp_train" --parallel single || fail 'the run on one device failed' 'make doctor'
title "2. FSDP on $RANKS ranks: every rank keeps 1/$RANKS of the parameters, gradients and optimizer state"
case $runs in *ddp*)
    echo "(first DDP on $RANKS ranks, for its time and memory)"
    train ddp $LAUNCHER -n "$RANKS" "$BUILD/fsdp_train" --parallel ddp || fail 'the run by DDP failed' 'make doctor; the message above names the rank'
    ;;
esac
train fsdp $LAUNCHER -n "$RANKS" "$BUILD/fsdp_train" --parallel fsdp ||
    fail "the run on $RANKS ranks failed" 'make doctor; the message above names the rank'

title "3. The same bits?"
every=20
paste -d, "$OUT/single.csv" "$OUT/fsdp.csv" | awk -F, -v every=$every -v ranks="$RANKS" '
    NR == 1 { printf "%6s  %14s  %14s  %14s  %14s\n", "step", "loss, 1 device", "loss, " ranks " ranks", "norm, 1 device", "norm, " ranks " ranks"; next }
    { line = sprintf("%6d  %14s  %14s  %14s  %14s%s", $1 + 1, $2, $7, $3, $8, ($2 == $7 && $3 == $8) ? "" : "  DIFFERS") }
    NR == 2 || ($1 + 1) % every == 0 { print line; line = "" }
    END { if (line != "") print line }'
same=1
for name in ${runs#single }; do
    "$BUILD/fsdp_compare" "$OUT/single.csv" "$OUT/$name.csv" || same=0
    if cmp "$OUT/single/model.safetensors" "$OUT/$name/model.safetensors"; then
        echo "weights of $name: identical, all $(wc -c <"$OUT/$name/model.safetensors") bytes of model.safetensors"
    else
        same=0
    fi
done

title "4. What a rank holds at its peak, and sends in a step"
awk -F, -v ranks="$RANKS" '
    function human(bytes) {
        if (bytes == "") return "-"
        if (bytes >= 1e6) return sprintf("%.2f MB", bytes / 1e6)
        return bytes >= 1e3 ? sprintf("%.1f kB", bytes / 1e3) : bytes + 0 " B"
    }
    FNR == 1 { file++; next }
    $1 == "calls" { next }
    !(($1, $2) in seen) { seen[$1, $2] = 1; order[++n] = $1 SUBSEP $2 }
    { measured[file, $1, $2] = $3; planned[file, $1, $2] = $5 }
    END {
        printf "%-24s %12s %14s %14s\n", "", "one device", "rank of " ranks, "planned"
        for (i = 1; i <= n; i++) {
            split(order[i], key, SUBSEP)
            m1 = measured[1, key[1], key[2]]; m2 = measured[2, key[1], key[2]]; f2 = planned[2, key[1], key[2]]
            if (m1 + m2 + f2 == 0) continue
            if (key[1] == "bytes" && !heading++) print "sent by rank 0 in a step"
            name = key[2] == "total" ? "all, at one moment" : key[2]
            printf "  %-22s %12s %14s %14s\n", name, human(m1), human(m2), human(f2)
        }
    }' "$OUT/single-memory.csv" "$OUT/fsdp-memory.csv"

title "5. The curves"
curves="set datafile separator ','; set xlabel 'step'; set ylabel 'loss'; set grid; set key top right
plot '$OUT/single.csv' every ::1 using 1:2 with lines lw 4 lc rgb '#9ecae1' title '1 device', \
     '$OUT/fsdp.csv' every ::1 using 1:2 with lines lw 1 lc rgb '#cb181d' title 'FSDP, $RANKS ranks'"
if command -v gnuplot >/dev/null 2>&1; then
    printf "set terminal dumb size 100,20\nset datafile separator ','\nset xlabel 'step'\nset key off\nplot '%s' every ::1 using 1:2 with dots\n" \
        "$OUT/fsdp.csv" | gnuplot 2>/dev/null | grep -v '^[[:space:]]*$'
    printf "set terminal pngcairo size 900,500\nset output '%s'\n%s\n" "$OUT/loss.png" "$curves" | gnuplot &&
        echo "both curves: $OUT/loss.png"
else
    echo 'SKIP plot: gnuplot is not installed'
fi

# scores NAME -- step, loss and accuracy of each evaluation
scores() { sed -n 's/.*eval  step \([0-9]*\)  val loss \([^ ]*\)  accuracy \([^ ]*\) .*/\1 \2 \3/p' "$OUT/$1.log"; }

if [ "$runs" = 'single fsdp' ]; then
    title "6. Text from the weights that the $RANKS ranks trained (a minute of training: no more than a taste)"
    # Three pieces of at most 64 bytes, because positions after --seq-len were not trained.
    for prompt in 'You may ' 'This license ' 'the source code '; do
        "$BUILD/fsdp_generate" "$OUT/fsdp" --prompt "$prompt" --length 48 --temperature 0.4 --top-k 10 >"$OUT/text" ||
            fail 'build/fsdp_generate failed' "look at $OUT/fsdp"
        tr '\n' ' ' <"$OUT/text" | sed 's/^/  | /; s/$/ .../' && echo
    done
else
    title "6. What the test set says: the sum of right answers is all-reduced"
    for name in $runs; do scores "$name" >"$OUT/$name.scores"; done
    printf '%6s  %14s  %9s  %14s  %9s\n' step 'loss, 1 device' accuracy "loss, $RANKS ranks" accuracy
    paste -d ' ' "$OUT/single.scores" "$OUT/fsdp.scores" | awk '{ printf "%6d  %14s  %9s  %14s  %9s\n", $1, $2, $3, $5, $6 }'
    for name in ddp fsdp; do cmp "$OUT/single.scores" "$OUT/$name.scores" || same=0; done
    [ -s "$OUT/fsdp.scores" ] || same=0
    title '7. DDP and FSDP: time of a step, and the most that rank 0 held'
    for name in ddp fsdp; do
        awk -F, -v name=$name '$1 == "memory" && $2 == "total" { printf "%-5s %7.2f MB", name, $3 / 1e6 }' "$OUT/$name-memory.csv"
        sed -n 's/.*done: .*, \(.* ms per step\).*/  \1 (median)/p' "$OUT/$name.log"
    done
    what=", the test set's accuracy of $(awk 'END { print $3 }' "$OUT/fsdp.scores")"
fi

rank_bytes=$(awk -F, '$1 == "memory" && ($2 == "params_shard" || $2 == "optimizer") { n += $3 } END { print n }' "$OUT/fsdp-memory.csv")
all_bytes=$(awk -F, '$1 == "memory" && ($2 ~ /^params/ || $2 == "optimizer") { n += $3 } END { print n }' "$OUT/single-memory.csv")
share=$(awk -v a="$rank_bytes" -v b="$all_bytes" 'BEGIN { printf "%.2f MB of %.2f MB of weights and optimizer state", a / 1e6, b / 1e6 }')
printf '\n'
[ $same -eq 1 ] || fail "FSDP on $RANKS ranks and one device gave different bits" \
    "build/fsdp_compare $OUT/single.csv $OUT/fsdp.csv"
echo "demo: FSDP on $RANKS ranks gave the same bits as one device in $STEPS steps (losses, norms, weights${what:-}); a rank kept $share; $(($(date +%s) - begun)) s"
