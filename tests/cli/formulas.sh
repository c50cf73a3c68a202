#!/bin/bash
# formulas.sh -- compares what a run holds and sends with ZeRO's closed forms, computed here from the shape of the model. This
# finds errors that a plan cannot show, because the plan makes the same calls as the run: an extra gather, a unit that is not
# freed, a sum of the wrong type.
#
# A unit of `slots` elements has P = 32 W ceil(slots / (32 W)). Shard groups have S ranks and there are R = W / S replicas.
# There are A micro-steps; parameters have p bytes, sums have r. Reductions give each rank P / W elements for any S. If R > 1,
# replicas gather these into P / S at the end of the step, unit by unit. Each step gathers the A losses of every rank, and sums
# the squares of the gradients exactly, in 22 words. With --save it adds up three more words: counts of ranks.
# At one time the root and one block are gathered; with prefetch, the root and two blocks.
#
# --no-sync reduces once a step, and holds one sum of all gradients in addition to the gradients of the root and a
# block. --no-sync=replicas reduces to P / S in each micro-step. At the end of the step it adds up the shards of R
# replicas, unit by unit, and holds a copy of one unit's shard. --reshard-after step gathers each unit once a step.
# --sharding optimizer (ZeRO-1) does both: 2 (W - 1) / W of all parameters a step, however many micro-steps.
# --reshard-to N gathers a block from all ranks once; then N ranks keep it between them and gather it from each other.
#
# With --freeze a unit that trains only some of its parameters has a P for these and a P for the frozen ones. Both are
# gathered; only the first is reduced and has gradients and moments. Blocks before the first layer that trains are
# gathered only in forward. Backward does not reach the embedding either, so the root is reduced before the blocks.
. "$(dirname "$0")/lib.sh"
cli_start "$@"
model='--n-layer 3 --d-model 36 --n-head 2 --vocab-size 100 --n-positions 20 --ops portable --seq-len 16 --synthetic 10000'

# reported NAME W OPTION... -- a case: a run on W ranks writes a report
reported() {
    case_is "$1" || return
    ends_with 0 $starts -n "$2" "$trainer" $model --memory-report "$work/csv" "${@:3}"
}

# by_formula VARIABLE=VALUE... PROGRAM -- of awk, which reads the report and prints what is wrong
functions='function up(n, to) { return to * int((n + to - 1) / to) }
    function slot(n) { return up(n, 32) }
    function P(slots) { return up(slots, 32 * W) }
    BEGIN {
        d = 36; n_heads = 2
        of_root = slot(100 * d) + slot(20 * d) + 2 * slot(d)
        of_block = 6 * slot(d) + slot(3 * d * d) + slot(3 * d) + slot(d * d) + 2 * slot(4 * d * d) + slot(4 * d)
    }'
by_formula() {
    local said values=() value
    for value in "${@:1:$#-1}"; do
        values+=(-v "$value")
    done
    said=$(awk -F, "${values[@]}" "$functions ${*: -1}" "$work/csv") || complain "$said"
}

# check FORM W S A PREFETCH p r OPTIONS -- train two steps and compare the report with the formulas. $freeze: none,
# first (the embedding and a block), half (the same and the attention of the next block, which backward does not reach
# either) or biases
freeze=none
check() {
    form=$1 w=$2 s=$3 a=$4 prefetch=$5 p=$6 r=$7
    local title="$form W=$w S=$s, micro-steps $a, prefetch $prefetch, $p and $r bytes, frozen: $freeze"
    shift 7
    [ $freeze = first ] && set -- "$@" --freeze 'transformer.wte.weight,*.wpe.*,transformer.h.0.*'
    [ $freeze = half ] && set -- "$@" --freeze 'transformer.w*,transformer.h.0.*,transformer.h.1.attn.*,transformer.h.1.ln_1.*'
    [ $freeze = biases ] && set -- "$@" --freeze '*.bias'
    [ "$p" = 2 ] && set -- "$@" --param-dtype bf16
    [ "$r" = 2 ] && set -- "$@" --reduce-dtype bf16
    reported "$title $EXTRA" "$w" --steps 2 --batch-size 2 --reduction fast --grad-accum "$a" --prefetch "$prefetch" \
        "$@" $EXTRA || return
    by_formula form="$form" W="$w" S="$s" A="$a" ahead="$prefetch" p="$p" r="$r" freeze="$freeze" extra="$EXTRA" '
        BEGIN {
            all_slots = of_root + 3 * of_block; R = W / S; n = 4
            blocks = 3 # that are trained
            if (freeze == "first" || freeze == "half") { cold_root = of_root - 2 * slot(d); blocks = 2 }
            if (freeze == "biases") { cold_root = slot(d); cold_block = 4 * slot(d) + slot(3 * d) + slot(4 * d) }
            root = P(of_root - cold_root); block = P(of_block - cold_block)
            whole_root = root + P(cold_root); whole_block = block + P(cold_block)
            all = root + blocks * block; whole = whole_root + 3 * whole_block; n = 1 + blocks
            parts = 1 + (cold_root > 0) + 3 * (1 + (cold_block > 0)) # flat arrays
            own = whole / S; own_trained = all / S
            if (form == "ddp") {
                own = all_slots; own_trained = all_slots - cold_root - (3 - blocks) * of_block - blocks * cold_block
                all = P(own_trained); n = 1
            }
            at_once = (ahead == "none" ? 1 : 2)
            grads = root + at_once * block
            if (blocks == 2) grads = at_once * block # the root is reduced before the blocks, and is smaller than a block
            if (form == "full" || form == "hybrid") {
                gathered = whole + blocks * whole_block; gathers = parts + blocks * (1 + (cold_block > 0))
            }
            if (form == "grad-op") { gathered = whole; gathers = parts }
            at_once = whole_root + at_once * whole_block
            if (form == "grad-op") at_once = whole_root + (freeze == "first" ? blocks : 3) * whole_block
            if (freeze == "half") { # only with form full
                mlp = P(2 * slot(d) + 2 * slot(4 * d * d) + slot(4 * d) + slot(d))
                attn = P(2 * slot(d) + slot(3 * d * d) + slot(3 * d) + slot(d * d) + slot(d))
                all += mlp - block; whole += attn + mlp - block; own = whole / S; own_trained = all / S
                gathered = whole + block + mlp; gathers = 8
                both_blocks = block + attn + mlp; most = attn + mlp > block ? attn + mlp : block
                at_once = whole_root + (ahead == "none" ? most : both_blocks)
                grads = ahead == "none" ? block : block + mlp
            }
            want["memory,params_shard"] = 4 * own
            want["memory,optimizer"] = 8 * own_trained
            want["memory,params_full"] = p * (gathers > 0 ? at_once : p == 2 ? own : 0)
            want["memory,grads_full"] = 4 * (form == "ddp" ? all : grads)
            want["memory,grads_shard"] = 4 * (form == "ddp" || R == 1 ? all / W : all / S + block / W)
            want["bytes,all-gather"] = A * (S - 1) / S * gathered * p + (W - 1) * A * 4 + (R - 1) * all / W * 4
            want["calls,all-gather"] = A * gathers + 1 + (R > 1 ? n : 0)
            want["bytes,reduce-scatter"] = A * (W - 1) / W * all * r
            want["calls,reduce-scatter"] = A * n
            if (extra ~ /--no-sync$|sharding opt/) {
                want["bytes,reduce-scatter"] /= A
                want["calls,reduce-scatter"] = n
                want["memory,grads_full"] = 4 * (form == "ddp" ? 2 * all : all + root + block)
            } else if (extra == "--no-sync=replicas") {
                want["bytes,reduce-scatter"] = (A * (S - 1) / S + (R - 1) / W) * all * r
                want["calls,reduce-scatter"] = A * n + n
                want["memory,grads_shard"] = 4 * (all + block) / S
            }
            if (extra ~ /step|sharding opt/) {
                want["bytes,all-gather"] = (S - 1) / S * all * p + (W - 1) * A * 4
                want["calls,all-gather"] = 5
                want["memory,params_full"] = p * all
            } else if (extra ~ /reshard-to/) {
                N = extra; sub(/.* /, "", N)
                far = A * whole_root + 3 * whole_block; near = (A * 6 - 3) * whole_block
                want["bytes,all-gather"] = ((S - 1) / S * far + (N - 1) / N * near) * p + (W - 1) * A * 4
                want["memory,params_full"] = p * (at_once + 3 * whole_block / N)
            }
            if (extra ~ /momentum/) want["memory,optimizer"] = 4 * own_trained
            slice = int((22 + S - 1) / S)
            want["bytes,all-reduce"] = S == 1 ? 0 : 8 * (22 - slice + (S - 1) * slice)
            want["calls,all-reduce"] = S > 1
            if (extra ~ /--save/) {
                slice = int((3 + W - 1) / W)
                want["bytes,all-reduce"] += 8 * (3 - slice + (W - 1) * slice)
                want["calls,all-reduce"]++
            }
        }
        NR > 1 && ($1 "," $2) in want {
            seen++
            is = want[$1 "," $2]
            if ($4 == is && ($3 == is || $2 == "grads_shard")) next # the stream of reductions decides when a slice is freed
            print $1 " of " $2 ": measured " $3 ", as issued " $4 ", by formula " is
            bad = 1
        }
        END {
            if (seen != 11) print seen + 0 " figures, expected 11"
            exit bad || seen != 11
        }'
}

EXTRA=
for form in full grad-op none ddp; do
    for w in 2 3 4; do
        case $form in none | ddp) s=1 ;; *) s=$w ;; esac
        how="--sharding $form"
        [ $form = ddp ] && how='--parallel ddp'
        check $form $w $s $((w - 1)) none 4 4 $how
        check $form $w $s 2 none 2 $((2 + 2 * (w % 2))) $how
    done
done
for prefetch in backward both; do
    check full 2 2 2 $prefetch 4 4
    check full 3 3 1 $prefetch 2 2 --limit-all-gathers 1
    check hybrid 4 2 2 $prefetch 4 4 --sharding hybrid --fsdp-size 2
done
check hybrid 6 3 1 none 2 2 --sharding hybrid --fsdp-size 3
EXTRA='--no-sync'
check full 2 2 3 both 4 4
check full 3 3 2 none 2 2
check ddp 2 1 3 none 4 4 --parallel ddp
EXTRA='--no-sync=replicas'
check hybrid 4 2 3 both 4 4 --sharding hybrid --fsdp-size 2
check hybrid 4 2 2 none 2 2 --sharding hybrid --fsdp-size 2
EXTRA='--reshard-after step'
check full 3 3 3 both 4 4
check grad-op 2 2 2 none 2 2 --sharding grad-op
EXTRA='--optimizer sgd --momentum 0.9'
check full 3 3 1 none 4 4
EXTRA="--save $work/full"
check full 3 3 2 none 4 4
EXTRA="--save $work/ddp"
check ddp 2 1 1 none 4 4 --parallel ddp
EXTRA='--sharding optimizer'
check grad-op 2 2 2 none 4 4
check grad-op 3 3 3 both 4 4
check grad-op 4 4 2 none 2 2
EXTRA='--reshard-to 2'
check full 4 4 3 none 4 4
check full 6 6 2 both 2 4
freeze=biases
check full 4 4 2 both 4 4
EXTRA=
freeze=half
check full 2 2 2 none 4 4
check full 3 3 1 both 4 2
for freeze in first biases; do
    for w in 2 3; do
        check full $w $w 2 none 4 4
        check ddp $w 1 2 none 2 2 --parallel ddp
    done
    check full 3 3 2 both 2 2
    check grad-op 3 3 2 none 4 4 --sharding grad-op
    check none 2 1 1 none 2 4 --sharding none
    check hybrid 4 2 2 both 4 4 --sharding hybrid --fsdp-size 2
done

# In canonical mode A is a power of two, and --no-sync keeps log2 A gradients, which are nodes of the sum's tree. The
# tied weight's second use has its own sum and its own reduction.
for a in 2 8; do
    reported "no_sync, canonical, micro-steps $a" 3 --steps 2 --batch-size 1 --grad-accum $a --reduction canonical --no-sync \
        --prefetch none || continue
    by_formula A=$a W=3 '
        BEGIN {
            tied = 100 * d; root = P(of_root); block = P(of_block)
            for (sums = 0; 2 ^ sums < A; sums++) ;
            want["memory,grads_full"] = 4 * (sums * (root + 3 * block + tied) + root + tied + block)
            want["calls,reduce-scatter"] = 5
        }
        ($1 "," $2) in want && ++seen && $3 != want[$1 "," $2] {
            print $1 " of " $2 ": " $3 ", by formula " want[$1 "," $2]
            bad = 1
        }
        END { exit bad || seen != 2 }'
done

# activations REDUCTION BATCH p PART FROM EVERY OPTIONS -- train one step on two ranks and compare the activations with
# their formula. The layers of a block are attention and MLP; their PART (block, attn, mlp; -: none) runs again in each
# EVERY-th block from FROM on. A call of a layer takes the whole batch. In canonical mode portable operations sum by sequences,
# so this holds too, except for a loss in chunks, which is called for each sequence.
#
# A layer keeps its output and, for its backward, the mean and deviation of each row and the norm. In addition,
# attention keeps q, k and v, a logarithm for each row and head, and the output of the heads; MLP keeps the wide array;
# the model's last layer keeps the gradient of the logits, in padded rows. Layers that run again keep nothing: all segments share one
# buffer for what the largest segment keeps in all its calls, and one for the outputs inside a segment. Layers before
# the first that trains share two outputs, which backward uses too. Scratch has the size that the layer with the largest
# need takes; a layer that keeps nothing writes to scratch in its first forward what it would keep.
#
# If $chunk > 0, the loss is computed in chunks of that many rows, with a vocabulary of 5000. The last layer keeps no gradient
# of logits. Scratch holds the gradient of the norm, a sink, the logits of one chunk and the loss so far. Nothing grows with
# rows times vocabulary.
chunk=0
activations() {
    reduction=$1 batch=$2 p=$3 part=$4 from=$5 every=$6
    shift 6
    local type=fp32 title="activations $reduction, $batch sequences, $p bytes, again: $part from $from every $every, frozen: $freeze"
    [ $chunk -gt 0 ] && set -- "$@" --chunk-loss=$chunk --vocab-size 5000 && title="$title, chunks of $chunk"
    [ $freeze = half ] && set -- "$@" --freeze 'transformer.w*,transformer.h.0.*,transformer.h.1.attn.*,transformer.h.1.ln_1.*'
    [ "$p" = 2 ] && type=bf16
    [ "$reduction" = canonical ] && set -- "$@" --ops portable
    case $part in
    attn) set -- "$@" "--gradient-checkpointing=attention,from:$from,every:$every" ;;
    mlp | block) set -- "$@" "--gradient-checkpointing=$part,from:$from,every:$every" ;;
    esac
    reported "$title" 2 --steps 1 --batch-size "$batch" --reduction "$reduction" --param-dtype $type "$@" || return
    by_formula reduction="$reduction" b="$batch" p="$p" part="$part" from="$from" every="$every" \
        border=$([ $freeze = half ] && echo 4 || echo 0) chunk=$chunk '
        function room(elems, bytes) { return 64 * int((elems * bytes + 63) / 64) }
        function max(x, y) { return x > y ? x : y }
        BEGIN {
            T = 16; V = chunk ? 5056 : 104; heads = n_heads # of 5000 and 100, with gaps
            leaves = reduction == "canonical" ? b : 1
            calls = chunk ? leaves : 1 # of the head
            rows = b * T
            array = room(rows * d, p)
            norm = 2 * room(rows, 4) + array
            kept["attn"] = norm + room(rows * 3 * d, p) + room(rows * heads, 4) + array
            kept["mlp"] = norm + room(rows * 4 * d, p)
            scratch = array + room(2 * d, 4) + room(rows * 4 * d, p) # MLP; attention and (without chunks) the head take less
            rows /= calls
            norm = 2 * room(rows, 4) + room(rows * d, p)
            sink = room(rows * d, p) + room(2 * d, 4)
            kept["head"] = calls * (norm + (chunk ? 0 : room(rows * V, p)))
            if (chunk) scratch = max(scratch, max(sink, norm) + room((chunk < rows ? chunk : rows) * V, p) + room(1, 8))
            split("embed attn mlp attn mlp attn mlp head", layer, " ")
            for (i = 1; i <= 6; i++) {
                block = int((i + 1) / 2) # from 1
                again[i] = (part == layer[i + 1] || part == "block") && block > from && block % every == 0 && i >= border
            }
            for (i = 0; i < 8; i++) {
                inside = again[i] && again[i + 1] && layer[i + 1] == "attn" # the next layer is in the same segment
                if (i + 1 >= border && i < 7 && !inside) sum += array
                if (inside) shared_out = array
                if (i >= border && !again[i]) sum += kept[layer[i + 1]]
                else scratch = max(scratch, kept[layer[i + 1]])
                segment = !again[i] ? 0 : (layer[i + 1] == "mlp" ? segment : 0) + kept[layer[i + 1]]
                shared_kept = max(shared_kept, segment)
            }
            want = sum + shared_out + shared_kept + 2 * array + scratch + 4 * leaves + 2 * 4 * b * T
        }
        $1 == "memory" && $2 == "activations" { is = $3; issued = $4 }
        END {
            if (is != want || issued != want) print "measured " is ", as issued " issued ", by formula " want
            exit is != want || issued != want
        }'
}
for freeze in none half; do
    for p in 4 2; do
        activations fast 2 $p - 0 1
        activations canonical 4 $p - 0 1
        for part in block attn mlp; do
            activations fast 2 $p $part 0 1
            activations canonical 4 $p $part 1 1
        done
    done
    for chunk in 5 100; do
        activations fast 2 4 - 0 1
        activations canonical 4 2 block 0 1
    done
    chunk=0
    activations canonical 2 4 block 0 2
    activations fast 3 4 mlp 2 1 --sharding grad-op
done
cli_end
