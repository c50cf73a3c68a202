#!/bin/bash
# plan.sh -- what --plan prints: models far too large for this machine, any rank, other machines and links, a slow rank, what fits
# a memory, many micro-steps, and what is refused. planned.sh and tests/equivalence/matrix.sh compare runs with their plans.
. "$(dirname "$0")/lib.sh"
cli_start "$@"
tiny='--n-layer 3 --d-model 32 --n-head 2 --vocab-size 300 --seq-len 16 --ops portable --batch-size 2'
large='--size 1558m --seq-len 1024 --plan-ranks 16'

# plan OPTION... -- one process plans; the output is in $work/out
plan() {
    good 1 --plan "$@"
}

# figure ROW [FIELD] -- bytes, calls or milliseconds of a row of the output. FIELD: another field; -1: the last
figure() { awk -v row="$1" -v field="${2:-2}" 'index($0, "  " row " ") == 1 { print $(field < 0 ? NF : field) }' "$work/out"; }
total() { figure 'at one moment' 4; }
flops() { sed -n 's/^computing of one step: \([0-9]*\) FLOPs/\1/p' "$work/out"; }

# holds EXPRESSION NAME=VALUE... -- awk finds EXPRESSION true
holds() {
    local said=$1 values=() value
    shift
    for value in "$@"; do
        values+=(-v "$value")
    done
    awk "${values[@]}" "BEGIN { exit !($said) }" || complain "$said: not with $*"
}

# not_planned OPTION... -- refused, with a hint and the name of the last option
not_planned() {
    local option
    launch 1 "$@"
    [ "$rc" = 1 ] || complain "exit status $rc, expected 1: $*"
    option=$(printf '%s\n' "$@" | grep -e '^--' | tail -n 1)
    grep -qe "${option%%=*}" "$work/err" && grep -q '^HINT: .' "$work/err" || complain "no such option, or no hint: $*"
}
# ---- models that fit no machine here ---------------------------------------------------------------------------------

# shard ELEMENTS RANKS -- bytes of a unit's shard, which is a whole number of 32 elements
shard() { echo $((($1 + 32 * $2 - 1) / (32 * $2) * 32 * 4)); }

within_limits() { timed bash -c 'ulimit -v 300000 -t 60 && exec "$@"' _ "$trainer" "$@"; }

# shape NAME RANKS LAYERS WIDTH OPTION... -- a block has 12 C C + 13 C parameters, the root V C + P C + 2 C
shape() {
    local ranks=$2 layers=$3 c=$4
    case_is "$1 parameters on $ranks ranks, in 300 MB and 60 s of processor time" || return
    shift 4
    within_limits "$@" --plan-ranks "$ranks" --plan-rank $((ranks - 1)) --plan-device h100
    expect_status 0
    grep -qx "plan for $ranks ranks: 1 replica, shard groups of $ranks; as rank $((ranks - 1))" "$work/out" || complain 'as another rank'
    holds 'got == expected' got="$(figure params_shard)" \
        expected=$((layers * $(shard $((12 * c * c + 13 * c)) "$ranks") + $(shard $(((50257 + 1024 + 2) * c)) "$ranks")))
}
shape 124M 8 12 768 --size 124m
shape 70B 128 80 8192 --size 1558m --n-layer 80 --d-model 8192 --n-head 64
shape 405B 16384 126 16384 --size 1558m --n-layer 126 --d-model 16384 --n-head 128

case_is 'a run that exports is planned in as little' && {
    for how in '--plan-ranks 128' '--parallel single'; do
        within_limits --plan --size 1558m --n-layer 80 --d-model 8192 --n-head 64 $how --export "$work/export"
        [ "$rc" = 0 ] || complain "exit status $rc: $how"
    done
}

case_is 'the work of a plan grows with the layers, not with their square' && {
    small='--d-model 32 --n-head 2 --vocab-size 300 --seq-len 16'
    good 1 $small --n-layer 2 --steps 0 --export "$work/deep"
    sed -i 's/"n_layer":[^,]*/"n_layer": 8000/' "$work/deep/config.json"
    for how in "--init-from $work/deep" "--init-from $work/deep --snapshot $work/deep.csv" \
        "$small --n-layer 500 --gradient-checkpointing=auto --device-memory 1"; do
        within_limits --plan --plan-ranks 8 $how
        [ "$rc" = 0 ] || complain "exit status $rc: $how"
    done
}

# ---- times -----------------------------------------------------------------------------------------------------------

# A step is compute plus exposed communication: the compute stream works or waits (three figures of one decimal). Compute takes
# at least its matrix products: 6 FLOP for every weight of a block and of the head, and every token.
step_is_whole() {
    holds 's - c - e < 0.151 && c + e - s < 0.151 && s > 0' s="$(figure step)" c="$(figure compute)" e="$(figure exposed)"
    holds 'least <= exposed' least="$(figure exposed -1)" exposed="$(figure exposed)"
}
least_ms() { awk -v flops="$1" 'BEGIN { print 1e3 * 6 * 4 * 1024 * (48 * 12 * 1600 ^ 2 + 50257 * 1600) / (0.5 * flops) }'; }

case_is 'times by published figures: an H100 is faster than an A100, and that than a T4' && {
    before=0
    for device in 'h100 66.9e12' 'a100 19.5e12' 't4 8.1e12'; do
        plan $large --plan-device ${device% *}
        step_is_whole
        holds 'compute >= least' compute="$(figure compute)" least="$(least_ms ${device#* })"
        holds 'step > before' step="$(figure step)" before=$before
        before=$(figure step)
    done
    plan $large --plan-device 910b --param-dtype bf16
    step_is_whole
}
case_is 'no schedule is shorter than its floor' && {
    for device in h100 t4; do
        for how in '--prefetch none' '--prefetch both --limit-all-gathers 1' '--sharding grad-op' '--sharding none' '--parallel ddp' \
            '--sharding hybrid --fsdp-size 8' '--reduction canonical --grad-accum 100' '--bucket 100000000'; do
            plan --size 124m --plan-ranks 16 --plan-device $device $how
            step_is_whole
        done
    done
}
case_is 'times of this machine, and of the link between its ranks' && {
    launch 2 $tiny --plan --plan-device this
    grep -q '^  measured just now: [1-9]' "$work/out" || complain 'nothing was measured'
    holds 'rate > 0' rate="$(sed -n 's/^  a collective: .* \/ \([0-9.]*\) GB.*/\1/p' "$work/out")"
}
# moves_at RATE -- each call takes the latency of 0.5 ms plus its bytes over RATE, one call after the other
moves_at() {
    local calls=0 bytes=0 op
    for op in all-gather reduce-scatter all-reduce; do
        calls=$((calls + $(figure $op))) bytes=$((bytes + $(figure $op 4)))
    done
    holds 'ms - (calls / 2 + 1e3 * bytes / rate) < 0.051 && calls / 2 + 1e3 * bytes / rate - ms < 0.051' \
        ms="$(figure communication)" calls=$calls bytes=$bytes rate="$1"
}
case_is '--plan-link: collectives take as long as their calls and bytes, and a faster link exposes less' && {
    before=1e9
    for rate in 1e9 1e10 1e11; do
        plan $large --plan-device h100 --plan-link $rate,0.0005
        moves_at $rate
        holds 'exposed < before' exposed="$(figure exposed)" before=$before
        before=$(figure exposed)
    done
}
# all_finite OPTION... -- planned, and no figure is infinite or not a number
all_finite() {
    plan "$@"
    ! grep -iE '\b(inf|nan)\b' "$work/out" >"$work/err" || complain "with ${*: -2}"
}
case_is 'numbers about the machine have ranges, and at their ends all figures are finite' && {
    offload="$tiny --plan-device h100 --plan-ranks 4 --device separate --cpu-offload"
    for numbers in '--plan-link 1,1000' '--plan-link 1e18,1e-30' '--plan-copies 1,1,1000' '--plan-copies 1e18,1e18,0' \
        '--plan-link 1,1000 --plan-copies 1,1,1000'; do
        all_finite $offload $numbers
    done
    for numbers in link=1e-320,0 link=0.9,0 link=1e19,0 link=1e9,1001 link=1e9,1e18 link=1e9,1e-320 link=1e9,1e-400 link=nan,0 link=1e9,inf \
        link=1e9 link=1e9,0,0 link=1e9,-1 'link= 1e9,0' copies=0.9,1,0 copies=1,1e-320,0 copies=1,1,1e18 copies=1e19,1,0 copies=1,1; do
        not_planned $offload "--plan-$numbers"
        grep -q "got '${numbers#*=}', expected .* 1e+" "$work/err" || complain "no range: $numbers"
    done
}
# Made-up prices: a call costs the square of its FLOP, times 1e-14 s. The expected sum holds only if the plan makes the calls of
# the run and prices each by its shape.
case_is '--plan-prices: operations take what a profile says' && {
    shape='--n-layer 2 --d-model 32 --n-head 2 --seq-len 32 --batch-size 2'
    good 2 $shape --synthetic 5000 --steps 4 --profile "$work/new/profile"
    awk -F, '$1 == "compute" { s = $5 * $5 / $3 * 1e-14; sum += s; printf "%s,%s,%s,%.12e,%s,%s\n", $1, $2, $3, s, $5, $6 }
             $1 == "total" && $2 == "compute" { printf "%.6f\n", 1e3 * sum / $3 >"/dev/stderr" }' \
        "$work/new/profile/profile-rank-0.csv" >"$work/new/prices.csv" 2>"$work/new/expected"
    plan $shape --plan-ranks 2 --plan-prices "$work/new/prices.csv" --plan-link 1e9,1e-5
    step_is_whole
    holds 'ms > 1 && ms - got < 0.051 && got - ms < 0.051' ms="$(cat "$work/new/expected")" got="$(figure compute)"
    not_planned --plan-ranks 2 --plan-prices "$work/new/prices.csv"
    not_planned --plan-prices "$work/new/prices.csv" --plan-device h100
    not_planned --plan-prices "$work/none.csv"
    not_planned --plan-prices README.md
    grep -v '^compute,gelu,' "$work/new/prices.csv" >"$work/new/less.csv"
    not_planned $shape --plan-ranks 2 --plan-link 1e9,1e-5 --plan-prices "$work/new/less.csv"
    grep -q "no operation 'gelu' in the file" "$work/err" || complain 'an operation without a price takes no time'
    for row in compute,x,0,1,1,1 compute,x,1e-320,1,1,1 compute,x,1,1e7,1,1 compute,x,1,-1,1,1 compute,x,1,nan,1,1 compute,x,1,1,inf,1 \
        compute,x,1,1,1,1e25 roof,upload,,1e18,,,,1e9 roof,upload,,0,,,,1e-320 roof,download,,nan,,,,1e9 roof,download,,0,,,,inf; do
        { cat "$work/new/prices.csv" && echo "$row"; } >"$work/new/odd.csv"
        not_planned $shape --plan-ranks 2 --plan-link 1e9,1e-5 --plan-prices "$work/new/odd.csv"
        grep -q "line $(wc -l <"$work/new/odd.csv") of .*: got '$row', expected .* 1e+" "$work/err" || complain "no such line: $row"
    done
}
# A line is read whole, however long it is; an endless one is an error. comment NUMBER -- a line of so many bytes, which is ignored
comment() { head -c "$1" /dev/zero | tr '\0' '#'; }
case_is '--plan-prices: lines of any length' && {
    prices='compute,matmul,1,1,1,1' made="$work/new/made.csv"
    for n in 400 511 512 513 1500 100000; do # what follows byte 511 of a line was a line of its own
        { comment $n && printf ',compute,gelu,1,1e9,1,1\n' && comment $((n - 1)) && printf 'compute,gelu,1,1e9,1,1\n' && echo "$prices"; } >"$made"
        not_planned $tiny --plan-prices "$made"
        says "no operation '(embedding|wte|[a-z_]*)' in the file"
        { comment $n && printf '\nroof,upload,,1e18,,,,1e9\n'; } >"$made"
        not_planned $tiny --plan-prices "$made"
        says "line 2 of $made: got 'roof,upload,,1e18,,,,1e9', expected"
        { printf 'roof,upload,,1e18,,,,1e9,' && comment $n; } >"$made" # without a newline
        not_planned $tiny --plan-prices "$made"
        says "line 1 of $made: got 'roof,upload,,1e18,,,,1e9,#+"
    done
    comment $((1 << 20)) >"$made" && echo >>"$made"
    not_planned $tiny --plan-prices "$made"
    says "$made: got 1048577 bytes, expected at most 1048576"
    for endless in /proc/kallsyms /dev/zero; do # the first is a regular file of 0 bytes
        not_planned $tiny --plan-prices $endless
        says "plan-prices: .*$endless"
    done
}
# A plan reads no data, but it must not promise what a run cannot begin.
case_is 'a plan of paths that are not there' && {
    good 1 $tiny --steps 1 --save "$work/new/saved" --export "$work/new/weights"
    for path in "$work/new/none" "$work/new/*.none" "$work/new/saved/none" ''"$(printf 'a%.0s' {1..300})"; do
        for option in data val-data resume init-from; do
            launch 1 $tiny --plan --$option "$path"
            expect_status 1
            says "(--)?$option|${path//\*/.}"
            says '^HINT: .'
        done
        for option in data val; do
            launch 1 $tiny --plan --$option-mask "$path" --${option/val/val-data} LICENSE
            expect_status 1
            says "$option-mask"
        done
    done
    plan $tiny --data LICENSE --val-data 'LIC*' --data-mask LICENSE --resume "$work/new/saved" --plan-ranks 2
    plan $tiny --resume auto --save "$work/new/unborn"
    plan $tiny --val-data lab1_flatparam --data-format bytes
    plan --model mnist --size tiny --val-data digits
}
# copies_take UP DOWN LATENCY BYTES_UP BYTES_DOWN COPIES -- the copies of a step, one after the other, take this long to 0.1%. If
# one direction is slow, a step takes at least the time of its copies, and at most that time plus a step without offload
copies_take() {
    holds 'ms / (1e3 * (up_bytes / up + down_bytes / down + n * latency)) - 1 < 0.001 &&
        ms / (1e3 * (up_bytes / up + down_bytes / down + n * latency)) - 1 > -0.001' \
        ms="$(figure 'host copies' 3)" up="$1" down="$2" latency="$3" up_bytes="$4" down_bytes="$5" n="$6"
    holds '(slow = 1e3 * (up < down ? up_bytes / up : down_bytes / down)) <= step + 0.05 && step <= slow + without + 0.15 &&
        longer <= step && longer >= slow - without - 0.15' \
        step="$(figure step)" without="$without" up="$1" down="$2" up_bytes="$4" down_bytes="$5" longer="$(figure 'host copies' 10)"
}
# Up and down: two moments of all units. --cpu-offload adds, up: the root once and the blocks twice for gathers, the sums of
# gradients for the norm, then parameters and gradients; down: sums, gradients and parameters.
case_is '--plan-copies: a plan with offload takes what its copies do' && {
    separate='--device separate --plan-ranks 2 --plan-device h100'
    plan $tiny $separate
    without=$(figure step) all=$(figure params_shard)
    root=$(shard $(((300 + 256 + 2) * 32)) 2)
    for rates in 1e5,1e15 1e15,1e5; do
        plan $tiny $separate --optimizer-offload --plan-copies $rates,0
        copies_take ${rates/,/ } 0 $((2 * all)) $((2 * all)) 16
        plan $tiny $separate --cpu-offload --plan-copies $rates,0
        copies_take ${rates/,/ } 0 $((2 * all - root + 5 * all)) $((5 * all)) 0
    done
    plan $tiny $separate --optimizer-offload --plan-copies 1e15,1e15,0.5 # 4 units
    holds 'ms == 8000' ms="$(figure 'host copies' 3)"
    grep -Eq '^  largest stall .*, for copy (root|h\.[0-9])$' "$work/out" || complain 'no copy of a unit stalls the step'
}
case_is 'rates of copies: measured, of a profile, or refused' && {
    good 2 $tiny --device separate --synthetic 5000 --steps 3 --profile "$work/new/copies"
    csv="$work/new/copies/profile-rank-0.csv" link='--plan-ranks 2 --plan-link 1e9,1e-5 --device separate --cpu-offload'
    [ "$(grep -c '^roof,\(up\|down\)load,,0\.0[0-9]*,,,,[1-9][.0-9e+]*,,$' "$csv")" = 2 ] || complain 'no rates in the profile'
    grep -q 'copies of .* GB/s from the host and .* GB/s to it' "$work/new/copies/profile.md" || complain 'no rates in the table'
    awk -F, -v OFS=, '$2 == "upload" { $4 = 2; $8 = 3e9 } $2 == "download" { $4 = 4; $8 = 5e9 } { print }' "$csv" >"$work/new/made-up.csv"
    plan $tiny $link --plan-prices "$work/new/made-up.csv"
    says '^  a copy from the host: 2000000 us . bytes / 3.00 GB/s, to the host: 4000000 us . bytes / 5.00 GB/s$' "$work/out"
    for way in upload download; do
        grep -v "^roof,$way," "$csv" >"$work/new/less.csv"
        not_planned $tiny $link --plan-prices "$work/new/less.csv"
        grep -q 'has no rate of copies' "$work/err" && grep -q '^HINT: pass --plan-copies' "$work/err" || complain "no rate of $way is none"
        plan $tiny $link --plan-prices "$work/new/less.csv" --plan-copies 1e9,1e9,1e-5
    done
    plan $tiny --plan-ranks 1 --device separate --cpu-offload --plan-device this
    holds 'ms > 0' ms="$(figure 'host copies' 3)"
}
# If the host waits after every unit, only prefetch issues gathers early. Forward prefetch learns the order in the first step; the
# third step is reported.
case_is 'prefetch in forward and backward exposes less than in backward, and that less than none' && {
    before=1e9
    for prefetch in none backward both; do
        FSDP_HOST_SYNC=1 plan --size 124m --plan-ranks 8 --plan-device h100 --prefetch $prefetch
        holds 'exposed < before' exposed="$(figure exposed)" before=$before
        before=$(figure exposed)
    done
}
# ---- what fits -------------------------------------------------------------------------------------------------------

# fit_batch BYTES RANKS OPTION... -- the batch that --plan-fit names fits; the next larger one does not
fit_batch() {
    local have=$1 ranks=$2 batch
    shift 2
    plan "$@" --plan-ranks $ranks --plan-fit
    batch=$(figure 'largest batch' 3)
    batch=${batch%,}
    holds 'batch > 0' batch="$batch"
    plan "$@" --plan-ranks $ranks --batch-size "$batch"
    holds 'total <= have' total="$(total)" have=$have
    plan "$@" --plan-ranks $ranks --batch-size "$(case $* in *canonical*) echo $((2 * batch)) ;; *) echo $((batch + 1)) ;; esac)"
    holds 'total > have' total="$(total)" have=$have
}
# fit BYTES RANKS OPTION... -- in addition, the batch of the options does not fit on fewer ranks than --plan-fit names
fit() {
    local have=$1 ranks=$2 fewest
    fit_batch "$@"
    shift 2
    plan "$@" --plan-ranks $ranks --plan-fit
    fewest=$(figure 'fewest ranks' 3)
    fewest=${fewest%,}
    holds 'fewest > 1' fewest="$fewest"
    plan "$@" --plan-ranks "$fewest"
    holds 'total <= have' total="$(total)" have=$have
    plan "$@" --plan-ranks $((fewest - 1))
    holds 'total > have' total="$(total)" have=$have
}
case_is '--plan-fit: the largest batch and the fewest ranks' && {
    fit 16000000000 4 --size 1558m --plan-device t4
    fit_batch 16000000000 8 --size 355m --parallel ddp --plan-device t4
    fit $((600 << 20)) 32 --size 124m --device-memory 600
    fit $((1500 << 20)) 32 --size 124m --device-memory 1500 --reduction canonical
    plan $tiny --seq-len 2048 --n-positions 2048 --device-memory 1000000000 --plan-fit # the largest that is accepted
    [ "$(figure 'largest batch' 3)" = 32768, ] || complain "the largest batch: $(figure 'largest batch' 3)"
    plan --plan-ranks 4 --device-memory 1 --plan-fit
    [ "$(grep -c '^  \(largest batch\|fewest ranks\) *none' "$work/out")" = 2 ] || complain 'what fits 1 MiB'
}

# ---- many micro-steps ------------------------------------------------------------------------------------------------

# as_run RANKS MICRO_STEPS OPTION... -- a run sends and holds what its plan says; canonical gradients may be below the plan
as_run() {
    local ranks=$1 n=$2
    shift 2
    good "$ranks" $tiny "$@" --grad-accum "$n" --synthetic 5000 --steps 2 --memory-report "$work/report.csv"
    awk -F, -v bound="$(case $* in *canonical*) echo 1 ;; esac)" 'NR > 1 { rows++
        at_most = bound && ($2 == "grads_shard" || $2 == "grads_full" || $2 == "total")
        if ($4 != $5 && !(at_most && $4 < $5)) { print; bad = 1 } } END { exit bad || rows < 15 }' \
        "$work/report.csv" >"$work/err" || complain 'the run beside its plan'
}
case_is 'more micro-steps than are made: calls, bytes and memory of a run' && {
    as_run 2 100
    as_run 3 130 --sharding grad-op
    as_run 2 100 --reduction canonical
    as_run 3 100 --reduction canonical --batch-size 1 # 3 * 85 leaves are 8 complete trees; no number up to 3 * 64 needs more than 6
    as_run 2 130 --reduction canonical --parallel ddp
    as_run 1 130 --reduction canonical --parallel single
}
case_is 'a million micro-steps' && {
    # every micro-step adds the same calls and bytes, so the difference between two plans gives the expected total
    for mode in fast canonical; do
        for n in 32 64 1000 1000000; do
            plan $tiny --plan-ranks 4 --grad-accum $n --reduction $mode --plan-device h100 --plan-link 1e9,0.0005
            step_is_whole
            [ $mode = canonical ] || moves_at 1e9 # canonical: some ranks send more than others
            for op in all-gather reduce-scatter; do
                for field in 2 4; do
                    now=$(figure $op $field)
                    case $n in
                    32) declare "half_${op/-/_}_$field=$now" ;;
                    64) declare "few_${op/-/_}_$field=$now" ;;
                    *)
                        few=few_${op/-/_}_$field half=half_${op/-/_}_$field
                        holds 'now == few + (n - 64) * (few - half) / 32' now="$now" few="${!few}" half="${!half}" n=$n
                        ;;
                    esac
                done
            done
        done
        [ $mode = fast ] || grep -q '(gradients: at most)$' "$work/out" || complain 'it does not say that it is a bound'
        [ $mode = canonical ] || ! grep -q 'at most)' "$work/out" || complain 'a bound that is not needed'
    done
}

# ---- buckets, and what is refused ------------------------------------------------------------------------------------

case_is '--bucket auto from one process: with a link, or refused' && {
    not_planned $tiny --plan-ranks 4 --bucket auto
    for how in '--plan-link 1e8,1e-3' '--plan-device t4'; do
        plan $tiny --plan-ranks 4 --bucket auto $how
        grep -q ', buckets of at most [1-9][0-9]* parameters$' "$work/out" || complain "no buckets: $how"
    done
}
case_is 'values that cannot be' && {
    for value in abc 1e9 0,1 -1,1 1e9,-1 nan,1 1e9,inf 1e9,1e-5x 1e9: ,; do
        not_planned --plan-ranks 4 --plan-device h100 --plan-link=$value
    done
    for value in abc 1e9 1e9,1e9 0,1e9,0 1e9,0,0 1e9,1e9,-1 nan,1,1 1e9,1e9,1e-5x ,1,1; do
        not_planned --plan-ranks 4 --plan-device h100 --plan-copies=$value
    done
    not_planned --plan-ranks 4 --plan-copies 1e9,1e9,1e-5
    not_planned --plan-ranks 4 --plan-rank 4
    not_planned --plan --plan-rank 1
    not_planned --plan-ranks 4 --plan-rank=-2
    launch 1 $tiny --plan-rank 0
    grep -q '^plan for 1 rank:' "$work/out" || complain 'rank 0 trains in place of being planned'
    not_planned --plan-ranks=0
    not_planned --plan-fsdp-size=0
    not_planned --plan-ranks 4 --plan-device h101
    not_planned --plan-ranks 4 --plan-link 1e9,1e-5
    not_planned --plan-ranks 4 --plan-device this
}
# ---- what runs again -------------------------------------------------------------------------------------------------

# Lists each choice of a part and a first block with its memory and operations. Then plans with auto, with memory limits between
# the choices.
if case_is '--gradient-checkpointing=auto takes the fewest operations that fit'; then
    deep='--n-layer 4 --d-model 256 --n-head 4 --seq-len 256 --batch-size 8'
    : >"$work/choices"
    for how in '' --gradient-checkpointing={block,attention,mlp},from:{0,1,2,3}; do
        plan $deep $how
        echo "$(total) $(flops) ${how:-nothing}" >>"$work/choices"
    done
    sort -n "$work/choices" | awk 'NR > 1 { print int(($1 + last) / 2 / 1048576) } { last = $1 }' | sort -nu >"$work/limits"
    holds 'n > 4' n="$(wc -l <"$work/limits")"
    while read -r mib; do
        plan $deep --gradient-checkpointing=auto --device-memory "$mib"
        least=$(awk -v most=$((mib * 1048576)) '$1 <= most && (!n++ || $2 < least) { least = $2 } END { print least }' "$work/choices")
        holds 'bytes <= most && flops == least' bytes="$(total)" most=$((mib * 1048576)) flops="$(flops)" least="${least:-none}"
    done < <(tail -n +2 "$work/limits")
    plan $deep --gradient-checkpointing=auto --device-memory 1
    grep -q '^recompute: all layers of blocks from 0 on (auto: no choice fits)' "$work/out" || complain 'it does not say that no choice fits'
fi

cli_end
