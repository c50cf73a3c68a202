#!/bin/bash
# digests.sh -- --digests and fsdp_compare --bisect: sums do not depend on the number of ranks or on how parameters are sharded,
# a planted fault is found where it was planted, and files that do not fit are refused.
. "$(dirname "$0")/lib.sh"
cli_start "$@"
run='--n-layer 2 --d-model 32 --n-head 2 --seq-len 16 --global-batch 12 --steps 3 --synthetic 5000'
canonical="$run --ops portable --reduction canonical"
bf16='--param-dtype bf16 --reduce-dtype bf16'

# made W FILE OPTION... -- a run on W ranks must succeed and write digests to $work/FILE
made() {
    good "$1" "${@:3}" --digests "$work/$2"
}

# bisect RC REGEX A B -- comparing A and B must exit with RC and print a line that matches REGEX
bisect() {
    "$build/fsdp_compare" --bisect "$work/$3" "$work/$4" >"$work/found" 2>&1
    rc=$?
    expect_status "$1"
    grep -qE -- "$2" "$work/found" || complain "no line matches '$2': $(cat "$work/found")"
}

# ---- the same sums ----------------------------------------------------------------------------------------------

case_is 'one device'
made 1 one $canonical --parallel single --memory-report "$work/with.csv"
case_is 'one device in bf16'
made 1 one-bf16 $canonical $bf16 --parallel single

# same W OPTION... -- a run on W ranks must have the sums of one device
same() {
    case_is "W=$1 ${*:2}: the sums of one device"
    made "$1" many $canonical --check-order "${@:2}"
    case " $* " in *' bf16 '*) against=one-bf16 ;; *) against=one ;; esac
    bisect 0 '^identical digests: [0-9]{3} sums .* in steps 0 to 2$' many $against
    grep -q ' 0 violations' "$work/out" || complain 'the order of work was not checked'
}
same 1
same 2 --parallel ddp
same 3 --parallel ddp $bf16
same 2 --wrap sub-block --prefetch both
same 3 --sharding grad-op --wrap model --prefetch none
same 3 --bucket 20000 $bf16
same 4 --sharding none --prefetch backward
same 4 --sharding hybrid --fsdp-size 2 --batch-size 1
same 4 --sharding hybrid --fsdp-size 2 $bf16
FSDP_ASYNC_COMPUTE=1 same 4 --wrap size:20000 --prefetch both --limit-all-gathers 1
same 2 --device separate --sharding grad-op
same 3 --chunk-loss=5 --wrap sub-block
same 2 --chunk-loss=7 $bf16

case_is 'runs with other micro-batches are compared by steps, with a note'
made 3 three $canonical
bisect 0 '^note: micro-batch differs: 1 of 1 x 12 sequences and 3 of 1 x 4 sequences$' three one
made 4 four $canonical --batch-size 1
bisect 0 '^identical' four one
made 2 two $canonical --batch-size 2 # three micro-steps, as on one device with --batch-size 4
made 1 one-of-two $canonical --parallel single --batch-size 4
bisect 0 '^identical' two one-of-two
! grep -q '^note' "$work/found" || complain 'micro-steps of the same sequences were added up'
made 3 local $canonical --batch-size 2 --no-sync # a rank's sequences are adjacent
made 3 halves $canonical --batch-size 2
bisect 0 '^note: micro-batch differs: 2 of 3 x 2 sequences and 2 of 1 x 6 sequences$' local halves
grep -q '^identical' "$work/found" || complain 'with no_sync sums over a step differ'

case_is 'device memory and traffic are the same as without digests'
good 1 $canonical --parallel single --memory-report "$work/without.csv"
cmp -s "$work/with.csv" "$work/without.csv" || complain 'another memory report'

# ---- faults -----------------------------------------------------------------------------------------------------

# flip DIR ARRAY INDEX -- flip bit 16 of an fp32 in a checkpoint of one file, and correct the hash in the manifest
flip() {
    local file=$1/rank-00000.safetensors head at
    head=$(od -An -tu8 -N8 "$file")
    at=$(head -c $((head + 8)) "$file" | grep -aoE "\"$2\":\{[^}]*" | sed 's/.*\[\([0-9]*\),[0-9]*\].*/\1/')
    at=$((8 + head + at + 4 * $3 + 2))
    printf "\\$(printf %o $(($(od -An -tu1 -j$at -N1 "$file") ^ 1)))" | dd of="$file" bs=1 seek=$at conv=notrunc status=none
    "$build/fsdp_train" $canonical --steps 5 --parallel single --resume "$1" 2>&1 |
        sed -n 's/.*got [0-9]* bytes with XXH3 \([0-9a-f]*\), .* with \([0-9a-f]*\)$/s|\2|\1|/p' >"$work/sum"
    sed -i -f "$work/sum" "$1/manifest.json"
}

case_is 'a run that was resumed: the steps that both have'
made 1 five $canonical --parallel single --steps 5
good 1 $canonical --parallel single --steps 5 --stop-after 2 --save "$work/saved"
made 2 resumed $canonical --steps 5 --resume "$work/saved/step-2"
bisect 0 '^identical digests: .* in steps 2 to 4$' resumed five

case_is 'one bit of a parameter'
weight=transformer.h.1.mlp.c_fc.weight
cp -r "$work/saved/step-2" "$work/saved/bent"
flip "$work/saved/bent" "$weight@0.p" 1000
made 3 bent $canonical --steps 5 --resume "$work/saved/bent" --digest-values 2:h.1
bisect 1 "^first difference: step 2, micro-step 0, unit h.1 \(model in the other run\): forward copy of $weight\$" bent five
grep -qx 'to see the element: both runs again with --digest-values 2:h.1 and 2:model' "$work/found" || complain 'no next command'
made 1 five $canonical --parallel single --steps 5 --digest-values 2:model
bisect 1 "^first difference: step 2, .* of $weight, element 1000 \\(row 7 column 104\\): got [-0-9.e]+ \\([0-9a-f]{8}\\), expected " bent five

case_is 'one bit of a moment shows in the next step'
cp -r "$work/saved/step-2" "$work/saved/moment"
flip "$work/saved/moment" 'transformer.h.0.ln_1.bias@0.m' 3
made 2 moment $canonical --steps 5 --resume "$work/saved/moment"
bisect 1 '^first difference: step 3, micro-step 0, unit h.0 .* forward copy of transformer.h.0.ln_1.bias$' moment five

# differs NAME RC REGEX OPTION... -- compare a run on 2 ranks with the run on one device
differs() {
    case_is "$1"
    made 2 other $canonical "${@:4}"
    bisect "$2" "$3" other one
}
differs 'gradients that are summed in bf16' 1 '^first difference: step 0, micro-step 2, unit root .*: reduced gradient of ' --reduce-dtype bf16
differs 'another clipping shows after the first update' 1 '^first difference: step 1, micro-step 0, .* forward copy of ' --clip-grad 0.1
grep -qx 'note: clip-grad differs: 0.1 and 1' "$work/found" || complain 'the option that differs is not named'
differs 'another seed' 1 '^first difference: step 0, micro-step 0, .* forward copy of transformer.wte.weight' --seed 2
differs 'other data' 1 '^first difference: step 0, .*unit root .*: output of embed$' --synthetic 0 --data LICENSE
differs 'other maths' 1 '^first difference: step 0, .*: output of h.0' --ops fast
differs 'no verdict on a run that is not canonical' 2 'no verdict on bits: .* --reduction fast$' --reduction fast
differs 'another model' 2 '^model differs: ' --n-layer 1
differs 'another batch' 2 '^global-batch differs: ' --global-batch 24

case_is 'element by element'
made 4 values-4 $canonical --digest-values 1:root --sharding hybrid --fsdp-size 2
made 1 values-1 $canonical --digest-values 1:model --parallel single
for kind in '0,[a-z]*,forward copy' '0,[a-z]*,backward copy' '[0-9],[a-z]*,reduced gradient'; do
    for w in 1 4; do
        grep "^1,$kind,transformer.w.*(row" "$work/values-$w" | cut -d, -f4- >"$work/list-$w"
    done
    cmp -s "$work/list-1" "$work/list-4" || complain "other values: $kind"
    [ "$(wc -l <"$work/list-1")" = $((256 * 32 + 256 * 32)) ] || complain "$(wc -l <"$work/list-1") values: $kind"
done

# ---- what is refused --------------------------------------------------------------------------------------------

# unfit NAME REGEX FILE -- FILE must be refused
unfit() {
    case_is "$1"
    bisect 2 "$2" "$3" one
    grep -q '^HINT: ' "$work/found" || complain 'no HINT'
}
head -50 "$work/one" >"$work/cut"
unfit 'a file that is cut' 'cut is cut or damaged: line 51$' cut
head -c -2 "$work/one" >"$work/cut"
unfit 'a file that is cut in its last line' "cut is cut or damaged: line $(wc -l <"$work/one")\$" cut
sed '50s/,[0-9a-f]*,,$/,12345,,/' "$work/one" >"$work/bad"
unfit 'a row that is damaged' 'bad is cut or damaged: line 50$' bad
# lacks NAME AWK -- files without the rows for which AWK is true, compared with a whole file and with themselves. With another
# number of rows in the last line, only the whole file shows what is missing.
lacks() {
    awk "!($2)" n="$(wc -l <"$work/one")" "$work/one" >"$work/bad"
    unfit "a file without $1" '(bad is cut or damaged|the files have rows of different arrays)' bad
    bisect 2 "bad is cut or damaged: line $(wc -l <"$work/bad")\$" bad bad
    sed -i "\$s/.*/# end: $(grep -c '^[0-9]' "$work/bad") rows/" "$work/bad"
    unfit "a file without $1, with their number" 'the files have rows of different arrays' bad
    bisect 2 'the files have rows of different arrays' one bad
}
lacks 'a row' 'NR == 50'
lacks 'the last row' 'NR == n - 1'
lacks 'copies of backward' '/,backward copy,/'
lacks 'gradients' '/,reduced gradient,/'
case_is 'a row for each copy, output and gradient'
awk -F, '/^[0-9]/ { n[$4]++ } END { exit n["forward copy"] != 3 * 3 * 29 || n["backward copy"] != 3 * 3 * 29 ||
    n["output"] != 3 * 3 * 6 || n["reduced gradient"] != 3 * 28 }' "$work/one" || complain 'other numbers of rows'
awk 'NR == 50 { row = $0; next } { print } NR == 51 { print row }' "$work/one" >"$work/bad"
unfit 'rows in another order' 'step 0: the files have rows of different arrays' bad
sed '50s/^0,0/0,1/' "$work/one" >"$work/bad"
unfit 'a row of another micro-step' 'step 0: the files have rows of different arrays' bad
echo 'step,loss,grad_norm,lr,ms' >"$work/bad"
unfit 'a loss file' 'bad: the first line is not' bad
: >"$work/bad"
unfit 'an empty file' 'bad is cut or damaged: line 1$' bad
unfit 'no file' 'cannot read .*nowhere: No such file' nowhere
made 1 late $canonical --steps 5 --parallel single --resume "$work/saved/step-2"
made 1 early $canonical --steps 5 --parallel single --stop-after 1
case_is 'no step in common'
bisect 2 'late and .*early have no step in common$' late early

run=$canonical
to="--digests $new/refused"
refused 2 'an unknown unit' "got '1:h.7', expected STEP:UNIT" 'one of its units: root, h.0, h.1$' $to --digest-values 1:h.7
refused 2 'a step after the last' "got '3:h.1', expected STEP:UNIT, a step from 0 to 2$" 'a step that this run makes' $to --digest-values 3:h.1
refused 2 'no step' "got 'h.1', expected STEP:UNIT" 'a step .*, and one of its units' $to --digest-values h.1
refused 2 'a step before 0' "got '-1:h.1', expected STEP:UNIT" 'a step that this run makes' $to --digest-values -1:h.1
refused 2 'values without digests' '--digest-values: expected --digests FILE beside it, got other options' 'pass --digests FILE, or leave' --digest-values 1:h.1
refused 2 'a directory that is not there' '--digests /nowhere/d: /nowhere: No such file' 'a path in a directory' --digests /nowhere/d
case_is 'what was refused leaves no file'
[ -z "$(ls -A "$new")" ] || complain "there is $(ls -A "$new")"

# Sequences of 7 x 12 floats end within a line of 64 bytes, so their outputs do not follow each other without gaps.
odd="$canonical --size tiny --d-model 12 --n-head 2 --seq-len 7 --global-batch 8 --steps 3"
case_is 'sequences with gaps between them: one device and 4 ranks'
good 1 $odd --export "$work/odd-1"
good 4 $odd --export "$work/odd-4"
same_weights "$work/odd-1" "$work/odd-4"
cli_end
