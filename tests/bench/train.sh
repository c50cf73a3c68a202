#!/bin/bash
# train.sh [BUILD] -- compare a training step of GPT-2 124M, and of a Llama of similar size, with PyTorch's.
#
# Every case runs ours, the peer, and ours again, so that a noisy minute hits both (BENCH_FULL=1: five turns, more steps, and once
# the peer's memory with glibc's defaults). Both start from the same weights, read the same tokens and end with the same loss,
# which the table shows. Steps 1 and 2 of a run are cold, and memory is measured in them; the other steps of all runs give the
# median and the quartiles. Afterwards llmc.sh compares a step with llm.c's trainer, in another table.
# Then ours runs once more with --profile, which tells what stands between a step and its limit. The page is written after every case.
# BENCH_CASES="name ..." runs only these cases (llmc: that table); BENCH_SIZE (124m) is the GPT-2; PEER_ENV: see keep_blocks below.
# Without bf16 instructions PyTorch takes about a minute for a step in bf16, or longer, so such cases run the peer only if named.
set -u
. "${0%/*}/lib.sh"
find_python
title "train: one step of GPT-2 ${BENCH_SIZE:-124m} and Llama 124m, ours and PyTorch's"
D=$OUT/train
size=${BENCH_SIZE:-124m}
steps=$([ -n "$FULL" ] && echo 12 || echo 6)
turns=$([ -n "$FULL" ] && echo 'ours peer ours peer ours plain' || echo 'ours peer ours')

# name (llama-...: a Llama; only if named or in the long form), ranks, tokens per sequence, options of fsdp_train, the peer's options
# (none: compare with case =NAME)
CASES='
single           1  64 --parallel single                      | --parallel single
single-canonical 1  64 --parallel single --reduction canonical| =single
single-bf16      1  64 --parallel single --param-dtype bf16   | --parallel single --param-dtype bf16
ddp-2            2  64 --parallel ddp                         | --parallel ddp
fsdp-2           2  64 --parallel fsdp                        | --parallel fsdp
fsdp-2-canonical 2  64 --parallel fsdp --reduction canonical  | =fsdp-2
fsdp-2-bf16      2  64 --parallel fsdp --param-dtype bf16     | --parallel fsdp --param-dtype bf16
fsdp-4           4  64 --parallel fsdp                        | --parallel fsdp
fsdp-2-t256      2 256 --parallel fsdp                        | --parallel fsdp
fsdp-2-t256-bf16 2 256 --parallel fsdp --param-dtype bf16     | --parallel fsdp --param-dtype bf16
llama-2          2  64 --parallel fsdp                        | --parallel fsdp
llama-2-t256     2 256 --parallel fsdp                        | --parallel fsdp
llama-2-bf16     2  64 --parallel fsdp --param-dtype bf16    | --parallel fsdp --param-dtype bf16
llama-2-t256-bf16 2 256 --parallel fsdp --param-dtype bf16    | --parallel fsdp --param-dtype bf16
'

for name in ${BENCH_CASES:-}; do
    known="$(awk -F'|' 'NF { split($1, word, " "); printf "%s ", word[1] }' <<<"$CASES")llmc"
    [[ " $known " == *" $name "* ]] || fail "BENCH_CASES: got '$name', expected some of: $known" 'leave it out to run all of them'
done
rm -rf "$D" && mkdir -p "$D"
[ -f "$OUT/roof.csv" ] || tests/bench/roof.sh "$BUILD" || exit 1

# The tokens: the project's own text, read as bytes by both sides.
data=$D/text
cat README.md WRITEUP.md LICENSE common/*/*.c >"$data"
# model CASE -- set $init and $options_of_model
model() {
    case $1 in
    llama*) init=$D/init-llama options_of_model='--model llama --size 124m' ;;
    *) init=$D/init options_of_model="--size $size" ;;
    esac
}

# export_init CASE -- write its model's initial weights for both sides
export_init() {
    model "$1"
    [ -d "$init" ] && return
    say "initial weights for both sides: $options_of_model"
    # shellcheck disable=SC2086
    "$BUILD/fsdp_train" $options_of_model --parallel single --steps 0 --data "$data" --export-init "$init" >"$init.log" 2>&1 ||
        fail "cannot export the initial weights: $(tail -1 "$init.log")" 'make, then try again'
}

# At every free, glibc returns blocks above 32 MB to the system, which costs the peer up to half of its step. With these
# variables glibc keeps them. PEER_ENV= runs the peer with glibc's defaults, which are slower and need less memory.
keep_blocks='MALLOC_MMAP_THRESHOLD_=4294967296 MALLOC_TRIM_THRESHOLD_=17179869184 MALLOC_TOP_PAD_=67108864 MALLOC_ARENA_MAX=1'

# launch NAME COMMAND... -- run it, with a log and a done-marker, and measure the memory of its ranks
launch() {
    local name=$1 log=$D/$1.log
    shift
    export FSDP_BENCH_RUN=$$-$name
    tests/bench/pss.sh "$FSDP_BENCH_RUN" "$ranks" "$log" >"$D/$name.pss" &
    local sampler=$!
    timeout 600 "$@" >"$log" 2>&1 </dev/null
    local rc=$?
    : >"$log.ended"
    wait $sampler
    unset FSDP_BENCH_RUN
    [ $rc -eq 0 ] && grep -q '^done:' "$log"
}

run_ours() { # run_ours NAME OPTIONS
    local name=$1 launcher=''
    [ "$ranks" -gt 1 ] && launcher="$LAUNCHER -n $ranks"
    # shellcheck disable=SC2086
    launch "$name" $launcher "$BUILD/fsdp_train" $options_of_model --seq-len "$seq" --global-batch 4 --steps "$steps" \
        --data "$data" --loss-csv "$D/$name.csv" $2
}

run_peer() { # run_peer NAME OPTIONS
    local name=$1 launcher="$PYTHON"
    local threads=$((CORES / ranks > 0 ? CORES / ranks : 1))
    [ "$ranks" -gt 1 ] && launcher="$PYTHON -m torch.distributed.run --nproc-per-node $ranks"
    # shellcheck disable=SC2086
    OMP_NUM_THREADS=$threads launch "$name" env -u OMP_WAIT_POLICY ${PEER_ENV-$keep_blocks} \
        $launcher tests/bench/peer_torch.py --threads $threads --seq-len "$seq" --global-batch 4 --steps "$steps" \
        --data "$data" --init "$init" --csv "$D/$name.csv" $2
}

# pooled WHO CASE -- print "median q1 q3 n" of the milliseconds of all runs without cold steps
pooled() { cat "$D/$2.$1".[0-9].csv 2>/dev/null | awk -F, '$1 ~ /^[0-9]+$/ && $1 >= 2 { print $NF }' | quartiles; }
best() { cat "$D/$2.$1".[0-9].csv 2>/dev/null | awk -F, '$1 ~ /^[0-9]+$/ && $1 >= 2 { print $NF }' | sort -g | head -1 | grep . || echo -; }
last_loss() { tail -qn 1 "$D/$2.$1".[0-9].csv 2>/dev/null | head -1 | cut -d, -f2; }
most() { cat "$D/$2.$1".[0-9].pss 2>/dev/null | awk -v c="$3" '$c > m { m = $c } END { print m ? m : "-" }'; }

# peer_runs CASE PEER -- succeed if PEER are options with which the peer runs in this case
peer_runs() {
    [ -n "$PYTHON" ] && [ "${2#=}" = "$2" ] || return
    [[ $1 != *bf16 || " ${BENCH_CASES:-} " == *" $1 "* ]] || [ "$(field "$OUT/roof.csv" bf16_all_gflops)" != 0.0 ]
}

# profile CASE OPTIONS -- one more run of ours, with --profile; writes the folder $D/CASE.profile
profile() {
    run_ours "$1.profile" "$2 --profile $D/$1.profile" || say "$1: no profile: see $D/$1.profile.log"
}

# shape FIELD -- of the config.json of $init
shape() { grep -oE "\"$1\":[[:space:]]*[0-9]+" "$init/config.json" | grep -oE '[0-9]+$'; }

# weights CASE -- print the number of multiplied weights, and blocks x width
weights() {
    model "$1"
    case $1 in
    llama*) echo "$(shape num_hidden_layers) $(shape hidden_size) $(shape vocab_size) $(shape intermediate_size) $(shape num_attention_heads) $(
        shape num_key_value_heads)" | awk '{ print $1 * (2 * $2 * $2 + 2 * $2 * $2 / $5 * $6 + 3 * $2 * $4) + $3 * $2, $1 * $2 }' ;;
    *) echo "$(shape n_layer) $(shape n_embd) $(shape vocab_size)" | awk '{ print 12 * $1 * $2 * $2 + $3 * $2, $1 * $2 }' ;;
    esac
}

# parts CASE -- milliseconds of a profiled step of rank 0: products, attention, update, other operations, exposed communication, the rest
parts() {
    awk -F, '
        $1 == "compute" { part = $2 ~ /^matmul/ ? 1 : $2 ~ /^attention/ ? 2 : $2 ~ /^(adamw|sum_squares|scale|clip_coef)/ ? 3 : 4; ms[part] += $4 }
        $1 == "total" && $2 == "exposed" { ms[5] = $4 }
        $1 == "total" && $2 == "wall" { wall = $4; steps = $3 }
        END {
            if (!steps) { print "- - - - - -"; exit }
            ms[6] = wall - ms[1] - ms[2] - ms[3] - ms[4] - ms[5]
            for (i = 1; i <= 6; i++) printf "%.1f ", 1000 * ms[i] / steps
            print ""
        }' "$D/$1.profile/profile-rank-0.csv" 2>/dev/null || echo '- - - - - -'
}

# tables -- train.csv, train-parts.csv and train-memory.csv of the cases that have run
tables() {
    local ours peer name ranks seq options theirs
    echo 'case,ranks,T,ours ms,q1,q3,best,tokens/s,GFLOP/s,% of fp32 roof,peer ms,q1,q3,best,peer/ours,our loss,peer loss' >"$OUT/train.csv"
    echo 'case,limit ms,ours ms,peer ms,products over the limit,attention,update,other operations,exposed communication,the rest' >"$OUT/train-parts.csv"
    echo 'case,ranks,T,ours: MB of a rank,of all,peer: MB of a rank,of all,with glibc defaults: MB of a rank,of all'  >"$OUT/train-memory.csv"
    while IFS='|' read -r ours peer; do
        read -r name ranks seq options <<<"$ours"
        [ -n "$name" ] && [ -n "$(last_loss ours "$name")" ] || continue
        peer=${peer# }
        theirs=$name
        [ "${peer#=}" = "$peer" ] || theirs=${peer#=}
        echo "$name,$ranks,$seq,$(most ours "$name" 1),$(most ours "$name" 2),$(most peer "$theirs" 1),$(most peer "$theirs" 2),$(most plain "$theirs" 1),$(most plain "$theirs" 2)" >>"$OUT/train-memory.csv"
        echo "$name $ranks $seq $(pooled ours "$name") $(best ours "$name") $(pooled peer "$theirs") $(best peer "$theirs") $(
            last_loss ours "$name") $(last_loss peer "$theirs" | grep . || echo -) $(weights "$name") $(parts "$name")"
    done <<<"$CASES" | awk -v fp32="$(field "$OUT/roof.csv" fma_all_gflops)" -v bf16="$(field "$OUT/roof.csv" bf16_all_gflops)" -v parts="$OUT/train-parts.csv" '
        function as(format, x) { return x == "-" ? "-" : sprintf(format, x) }
        {
            tokens = 4 * $3
            # forward and backward: 6 FLOP per matmul weight and token; causal attention: 6 T C per layer and token
            gflop = (6 * $16 + 6 * $17 * $3) * tokens / 1e9
            rate = gflop / $4 * 1e3
            limit = 1e3 * gflop / ($1 ~ /bf16/ && bf16 > fp32 ? bf16 : fp32)
            printf "%s,%d,%d,%.0f,%.0f,%.0f,%.0f,%.0f,%.0f,%.0f,%s,%s,%s,%s,%s,%s,%s\n", $1, $2, $3, $4, $5, $6, $8, tokens / $4 * 1e3,
                rate, 100 * rate / fp32, as("%.0f", $9), as("%.0f", $10), as("%.0f", $11), as("%.0f", $13),
                $9 == "-" ? "-" : sprintf("%.2f", $9 / $4), as("%.4f", $14), as("%.4f", $15)
            printf "%s,%.0f,%.0f,%s,%s,%s,%s,%s,%s,%s\n", $1, limit, $4, as("%.0f", $9), $18 == "-" ? "-" : sprintf("%.0f", $18 - limit),
                as("%.0f", $19), as("%.0f", $20), as("%.0f", $21), as("%.0f", $22), as("%.0f", $23) >>parts
        }' >>"$OUT/train.csv"
}

# page -- write the tables and train.md of the cases that have run, and bench.md
page() {
    tables
    {
        echo "## A training step of GPT-2 $size, and of Llama 124m"
        echo
        echo "Global batch 4 sequences of T tokens, AdamW, clipping. $(echo "$turns" | wc -w) turns ($turns), steps 3 to $steps pooled."
        [ -n "$PYTHON" ] && echo "Peer: $torch, DDP and FSDP2 (fully_shard) on gloo, AdamW fused, glibc told to keep its blocks. llama: transformers' LlamaForCausalLM."
        [ -n "$PYTHON" ] || echo 'Peer: - (make bench-peers)'
        [ -n "$PYTHON" ] && ! peer_runs bf16 '' && echo 'The roof of bf16 is 0: in cases of bf16 the peer runs only if BENCH_CASES names them.'
        echo
        table "$OUT/train.csv"
        printf '\nWhat stands between a step and its limit, the products at the rate of multiply-adds in registers; a profiled run of rank 0, ms:\n\n'
        table "$OUT/train-parts.csv"
        [ -s "$OUT/train-llmc.md" ] && echo && cat "$OUT/train-llmc.md"
        printf '\nMemory: proportional set size (a page that n processes share counts 1/n), 10^6 bytes, the most in steps 1 and 2.\n\n'
        table "$OUT/train-memory.csv"
        # shellcheck disable=SC2086
        [ -z "$skipped" ] || printf '\nRefused or failed:%s\n' "$(printf ' %s' $skipped)"
    } >"$OUT/train.md"
    bench_page "not complete: ${1:-$name ended last}"
}

torch=$([ -z "$PYTHON" ] || "$PYTHON" -c 'import torch; print("PyTorch", torch.__version__)')
skipped=''
while IFS='|' read -r ours peer; do
    read -r name ranks seq options <<<"$ours"
    [ -n "$name" ] || continue
    if [ -n "${BENCH_CASES:-}" ]; then [[ " $BENCH_CASES " == *" $name "* ]] || continue
    else [ -n "$FULL" ] || [[ $name != llama* ]] || continue; fi
    peer=${peer# }
    turn=0
    export_init "$name"
    for who in $turns; do
        turn=$((turn + 1))
        run=$name.$who.$turn
        if [ "$who" = ours ]; then
            run_ours "$run" "$options" || { why=$(grep -hE '(rank|fsdp_train|train):|\]|invalid|unknown' "$D/$run.log" | head -1)
                say "$name: ours refused or failed: ${why:-see $D/$run.log}"; rm -f "$D/$run.csv"; skipped="$skipped $name"; break; }
        else
            peer_runs "$name" "$peer" || continue
            [ "$who" = plain ] && PEER_ENV='' run_peer "$run" "$peer" && continue
            run_peer "$run" "$peer" || { say "$name: the peer failed: see $D/$run.log"; rm -f "$D/$run.csv"; continue; }
        fi
        say "$name, $who: $(sed -n 's/^done: //p' "$D/$run.log"), rank $(cut -d' ' -f1 "$D/$run.pss") MB"
    done
    [[ " $skipped " == *" $name "* ]] || profile "$name" "$options"
    page
done <<<"$CASES"

tests/bench/llmc.sh "$BUILD"
llmc=$?
page 'train ended last'
plot train <<END
set style data histograms; set style histogram errorbars gap 2 lw 1; set style fill solid 0.8; set bars small
set ylabel 'ms per step (median, quartiles)'; set yrange [0:*]; set xtics rotate by -25; set title 'One training step of GPT-2 $size and Llama 124m, 4 sequences'
plot '$OUT/train.csv' skip 1 using 4:5:6:xtic(1) title 'this project', '' skip 1 using (valid(11) ? \$11 : 0):(valid(12) ? \$12 : 0):(valid(13) ? \$13 : 0) title 'PyTorch'
END
say "train: $(awk -F, 'NR > 1 && $15 != "-" { n++; if ($15 >= 1) a++ } END { printf "%d of %d cases are at least as fast as their peer", a, n }' "$OUT/train.csv")"
rm -f "$D"/init*/model.safetensors # large, and the trainer makes it again
exit $llmc
