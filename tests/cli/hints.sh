#!/bin/bash
# hints.sh -- follows the hints of errors to the letter: each way that a hint offers must lead to a run that succeeds.
#
# A case provokes an error with wrong, and takes the ways of its hint with way. Each option that the hint names must differ
# between the run that failed and one of the ways. hints.awk finds the hints in the sources: each that names an option or a
# program must be followed here, or stand in the list below with the reason why not.
. "$(dirname "$0")/lib.sh"
cli_start "$@"
fresh=1 shown='' given='' taken=''
unfollowed() {
    cat <<'END'
a full disk, or a file system that fails
    free some space, or pass another --save directory
    pass a --save directory that can be written
    free some space or pass another --loss-csv
    check the path given to --export, --export-init or --export-optimizer, and the space left there
a race: trainer/output_paths.c has just found that the file can be written or read
    pass a --snapshot path that can be written
    pass a --loss-csv path that can be written
    make it readable or pass another --loss-csv path
    pass a --profile directory that can be written
    pass a --memory-report path that can be written
    pass a --digests path that can be written
a preloaded library; fsdp_run.sh
    unset what sets it, such as LD_PRELOAD of a library that was linked with -ffast-math%s%s, or pass --%s fast
tasks of a launcher; fsdp_run.sh
permissions, which root has
    make it readable, or move it out of the folder of --init-from
a plan of hours
    plan or record fewer layers or micro-steps (--n-layer, --grad-accum)
no memory, or a limit on threads, descriptors or address space
    leave --save-async out
    use --comm mpi
    use --comm mpi, started by MPICH's mpiexec: it needs no such memory
    use --comm mpi, or a larger limit on address space (ulimit -v)
    use a smaller --batch-size, --seq-len or model, or more ranks
    use a smaller --size, --batch-size or --seq-len, or more ranks; --plan prints what a run needs
    use ranks on more hosts, or leave --cpu-offload, --optimizer-offload and --save-async out; --plan prints the parts
    free memory, or pass --ops portable
    free memory, raise its limits (ulimit -v, -d), or pass --ops portable
    use a smaller --length
an NVIDIA GPU or an NPU
    install NVIDIA's driver, or run it with --device cpu
    compute-sanitizer names the kernel and its access; --check-order finds a missing wait between streams
    use a smaller --batch-size, --seq-len or model
    bf16 takes a GPU of compute capability 8.0 or more; --ops portable works on all of them
    start fewer ranks, or pass --comm shm (several hosts: mpi), which copies through memory of the host
    run it with --ops fast; --reduction canonical still gives the same bits on any number of its devices
    train this model with --device cpu
    use --reduction canonical, whose sums are not HCCL's, or another --reduce-dtype
    npu-smi info lists NPUs; `source set_env.sh` of CANN lets programs find its libraries; or run it with --device cpu
    CANN's logs in ~/ascend/log name the operator; --check-order finds a missing wait between streams
several hosts, no MPICH, or the mpiexec of another MPI
    pass a --save directory that all ranks share, by its whole path
    leave --comm out, or pass --comm mpi
    start it with build/fsdp_run -n %d on one host, with MPICH's mpiexec or srun --mpi=pmi2 on several; unset %s if this process is to run alone
    copy one build to all hosts, and use hosts with one kind of processor; or pass --ops portable, which has the same bits on all, or --reduction fast
    run `make deps` (installs MPICH) and build again, or start the ranks of one host with build/fsdp_run
    start it with build/fsdp_run -n N PROGRAM, or with MPICH's mpiexec
a system without licence texts
    pass --data FILE with any text file
a checkpoint of an older version
    resume from an older checkpoint with a lower --lr or with --clip-grad 1, and --resume-change schedule,clip-grad
a norm that is wrong on one rank only; evaluate.sh
    lower --lr, add --warmup-steps or set --clip-grad 1. If not every rank says so, add --check-order: a wait may be missing
ten seconds of waiting; checkpoints.sh
    wait until it has ended or end it, or pass another --save
programs that call the library: the trainer has refused the option before
    use a smaller --vocab-size
    use a smaller --n-layer
    build/fsdp_train --help lists the models
    use a shorter --seq-len, or a model with more positions
    pass --sharding none: each rank holds a whole copy
    pass --limit-all-gathers 2
a damaged config.json, in which a size is 0
    pass --%s with a value of at least 1
no error, or a message
    the mask of --val-data
    HINT: ranks of a host share memory here (shm+mpi); comm is planned as with --comm mpi, and a run may hold more or less\n
    memory are available to it by --device-memory
    --device npu: no NPU can be used
a part of the hint of memory
    a smaller --offload-piece (the device holds two), 
END
}

# ---- cases --------------------------------------------------------------------------------------------------------

small='--n-layer 1 --d-model 16 --n-head 2 --seq-len 16 --ops portable --steps 1'
tiny=$small

# wrong W HINT OPTION... -- a case: the run fails, and its hint has this text
wrong() {
    wrong_run "$1" "$2" launch "$1" $tiny "${@:3}"
}
# way OPTION... -- the hint offers the run with these options, on as many ranks
way() {
    way_run launch "$ranks" $tiny "$@"
}
# wrong_run W HINT COMMAND..., way_run COMMAND... -- the same for a command that sets rc, as launch and timed do
wrong_run() {
    check_taken
    [ -z "$open" ] || verdict # processes that are left are looked for in the end
    case_is "$2" "$1" || return
    "${@:3}"
    [ "$rc" != 0 ] || complain 'exit status 0'
    shown=$(sed -nE 's/^(\[0\] )?HINT: //p' "$work/err")
    [[ $shown == *"$2"* ]] || complain "HINT: $shown, expected $2"
    given=${*:3} taken=''
    echo "$shown" >>"$work/shown"
}
way_run() {
    chosen || return
    "$@"
    expect_status 0
    [ ! -s "$work/err" ] || ! grep -q '^HINT: ' "$work/err" || complain "a hint again after $*"
    taken="$taken"$'\n'"$*"
}
# besides OPTION... -- the hint names these for other cases, or asks to read them
besides() {
    taken="$taken"$'\n'"launch $*"
}
# told REGEX -- what the hint says there
told() {
    grep -oE -- "$1" <<<"$shown" | head -1
}
# run_of PROGRAM WORD... -- what a hint that names a program says to run
run_of() {
    timed "$@"
}

# value_of OPTION WORDS -- sets value to how the option is given
value_of() {
    local word follows=''
    value=absent
    for word in $2; do
        [ -z "$follows" ] || value=$word follows=''
        case $word in
        "$1") value='' follows=1 ;;
        "$1="*) value=${word#*=} ;;
        esac
    done
}
# Each option that the hint names is given otherwise in one of the ways, or left out.
check_taken() {
    local option way value before rest=$shown
    [ -n "$open" ] || return 0
    while [[ $rest =~ --([a-z][a-z0-9-]*)(.*) ]]; do
        option=--${BASH_REMATCH[1]} rest=${BASH_REMATCH[2]}
        [ "$option" != --name ] || continue # a placeholder
        value_of "$option" "$given"
        before=$value
        while read -r way; do
            value_of "$option" "$way"
            [ -z "$way" ] || [ "$value" = "$before" ] || continue 2
        done <<<"$taken"
        complain "HINT: $shown: no way has another $option"
    done
    shown=''
}
# As in lib.sh, without the processes that watch the time: hundreds of runs are short, and this script has a limit.
timed() {
    launched=$*
    "$@" >"$work/out" 2>"$work/err" </dev/null
    rc=$?
}

# Files and runs of the rows
pack() { perl -e 'print pack("$ARGV[0]*", map { $_ * 7 % $ARGV[2] } 1 .. $ARGV[1])' "$@"; }
header() { perl -e 'print pack("l<256", @ARGV)' 20240520 1 "$1"; }
for program in fsdp_train fsdp_generate fsdp_compare; do
    cp "$build/$program" "$work/bin"
done
bin=$work/bin
pack 'S<' 900 251 >"$keep/narrow" && pack 'L<' 900 251 >"$keep/wide"
{ header 900; cat "$keep/narrow"; } >"$keep/shard.bin"
{ header 900; pack 'S<' 900 300; } >"$keep/shard-300.bin"
{ header 900; pack 'S<' 900 299; } >"$keep/shard-299.bin"
printf 'ten bytes.' >"$keep/short" && : >"$keep/empty" && pack C 900 255 >"$keep/odd" && printf 'x' >>"$keep/odd"
{ head -c 100 /dev/zero; head -c 800 /dev/zero | tr '\0' '\1'; } >"$keep/late-mask"
head -c 900 LICENSE >"$keep/text" && head -c 900 /dev/zero | tr '\0' '\1' >"$keep/mask"
cp "$keep/narrow" "$keep/x.bin" && gzip -c "$keep/text" >"$keep/text.gz" && mkdir "$keep/images"
"$build/tests/cli/idx_files" "$keep/images" train 0 20 && "$build/tests/cli/idx_files" "$keep/images" t10k 100 20 || exit 1
good 1 $tiny --n-positions 32 --export "$keep/gpt2"
good 1 $tiny --vocab-size 299 --export "$keep/words"
good 1 $tiny --vocab-size 300 --export "$keep/more-words"
good 1 $tiny --vocab-size 100 --synthetic 1000 --export "$keep/few"
good 1 $tiny --model llama --export "$keep/llama"
good 1 $tiny --steps 2 --save "$keep/saved" --loss-csv "$keep/a.csv" --digests "$keep/a.digests" --reduction canonical
good 1 $tiny --steps 2 --profile "$keep/profile"
good 1 $tiny --steps 2 --digests "$keep/fast.digests" --loss-csv "$keep/b.csv"

# ---- options as words ---------------------------------------------------------------------------------------------

wrong 1 'the default is --lr=' --lr nan
way "$(told '--lr=\S*')"
wrong 1 'pass one of ' --lr-schedule sine
for schedule in $(told '[a-z]+(\|[a-z]+)+' | tr '|' ' '); do
    [ "$schedule" = step ] || way --lr-schedule "$schedule" # another hint leads on from step
done
way "$(told '--lr-schedule=\S*')"
wrong 1 'describes --momentum' --momentum nan
way_run run_of $(told '\S* --help')
besides --momentum
wrong 1 'did you mean --steps?' --stesp 3
way "$(told '--[a-z]+')" 3
way_run run_of $(told '\S* --help')
wrong 1 '--help lists all options' --zzzzzzzzzzzzzzz
way_run run_of $(told '\S* --help')
wrong 1 'pass --resume DIR, or leave --resume-change out' --resume-change seed
good 1 $tiny --save "$new/changed"
way --resume "$new/changed" --resume-change seed --seed 2
way
wrong 1 'write --name=value' --steps
way --steps=1
wrong 1 'options are written --name=value or --name value' steps=1
way --steps=1
way --steps 1
wrong 1 'write the option alone, or leave it out' --plan=1
way --plan
way
# Every option of every program: the default that a hint names is taken, and --help describes the others.
every_option() {
    local program=$1 option hint defaults=
    "$bin/$program" --help >"$work/help" || complain "$program --help"
    for option in $(grep -oE '^  --[a-z0-9-]+' "$work/help"); do
        hint=$("$bin/$program" ${2:-} "$option=" 2>&1 | sed -n 's/^HINT: //p')
        case $hint in
        '' | 'build/fsdp'*) ;;
        'write the option alone'*) # as with a stray word
            [ "$program" = fsdp_run ] || [ "$("$bin/$program" ${2:-} "$option" 1 2>&1 | sed -n 's/^HINT: //p')" = "$hint" ] || complain "$option 1: another hint" ;;
        *'the default is '*) defaults="$defaults ${hint##*the default is }" ;;
        *"$bin/$program --help describes $option") ;;
        *) complain "$option=: HINT: $hint" ;;
        esac
    done
    set -- $defaults
    [ $# -gt 1 ] || complain "$# defaults"
    way_run timed "$bin/$program" $before "$@" $after
}
case_is 'each default that a hint names is a value'
before=$tiny after='' every_option fsdp_train
before="$keep/gpt2 --prompt x" after='' every_option fsdp_generate
before='' after=true every_option fsdp_run
wrong 1 'write the option alone, or leave it out' --eval-only 1
way --eval-only
way

# ---- the model ----------------------------------------------------------------------------------------------------

wrong 2 'leave --n-kv-head out, or pass --model llama' --n-kv-head 1
way
way --n-kv-head 1 --model llama
wrong 1 'pass --tp-blocks 1, 2, 4, ...' --tp-blocks 3
way --tp-blocks 2
wrong 1 'pass fewer --tp-blocks, or other sizes' --tp-blocks 4 --n-head 2
way --tp-blocks 2 --n-head 2
wrong 1 'pass fewer --tp-blocks, or a larger --vocab-size' --n-head 128 --d-model 128 --tp-blocks 128 --vocab-size 300
way --n-head 128 --d-model 128 --tp-blocks 16 --vocab-size 300
way --n-head 128 --d-model 128 --tp-blocks 128 --vocab-size 384 --seq-len 128
wrong 2 'pass --parallel fsdp, or leave --tp out' --tp 2 --parallel ddp
way --tp 2 --parallel fsdp
way --parallel ddp
wrong 2 'pass --tp N, or leave --sequence-parallel out' --sequence-parallel
way --tp 2 --sequence-parallel
way
wrong 1 'pass a --seq-len that --tp-blocks divides' --tp-blocks 2 --seq-len 15
way --tp-blocks 2 --seq-len 16
way --tp-blocks 1 --seq-len 15
wrong 3 'pass a --tp that divides the number of ranks' --tp 2
way --tp 1
wrong 4 'pass --tp-blocks with a multiple of --tp, a power of two' --n-head 4 --tp 4 --tp-blocks 2
way --n-head 4 --tp 4 --tp-blocks 4
way --n-head 4 --tp 2 --tp-blocks 2
wrong 1 'change --n-kv-head or --n-head so that it divides' --model llama --d-model 24 --n-head 4 --n-kv-head 3
way --model llama --d-model 24 --n-head 4 --n-kv-head 2
way --model llama --d-model 24 --n-head 6 --n-kv-head 3
wrong 1 'change --n-head or --d-model' --model llama --d-model 18
way --model llama --d-model 18 --n-head 1
way --model llama --d-model 16
wrong 3 'change --n-head or --d-model so that it divides' --n-head 3
way --n-head 4
way --n-head 3 --d-model 18
wrong 1 'pass --size with one of: ' --size huge
for size in $(told ': .*' | tr '|:' '  '); do
    way --plan --size "$size"
done
wrong 1 'pass --n-positions with as many, or a smaller --seq-len' --seq-len 300
way --seq-len 300 --n-positions 300
way --seq-len 256
tiny='--steps 1 --batch-size 1'
wrong 1 'leave the option out: only --d-model and --d-ff differ' --model mnist --size tiny --n-layer 2
way --model mnist --size tiny
way --model mnist --size tiny --d-model 2 --d-ff 8
wrong 1 'use a smaller --d-model' --model mnist --d-model 100000 --d-ff 16
way --model mnist --d-model 4 --d-ff 16
tiny=$small
wrong 1 'leave the text out, or choose blocks, such as ' --gradient-checkpointing=from:1
way --gradient-checkpointing
way "--gradient-checkpointing=$(told '[a-z]+,from:[0-9]+')"
wrong 1 'use names such as ' --freeze nothing
for name in $(told 'transformer.*;' | tr -d ',;' | sed 's/ or / /'); do
    way --freeze "$name"
done

# ---- imported models: the weights set the size, so hints must not ask for another -----------------------------------------

import="--init-from $keep/gpt2"
wrong 1 'leave --model out, or pass other weights' $import --model llama
way $import
way --init-from "$keep/llama" --model llama
for size in --n-layer\ 2 --n-head\ 4 --d-model\ 32 --d-ff\ 32 --vocab-size\ 999 --n-positions\ 64 --n-kv-head\ 1 --size\ small --size\ huge; do
    wrong 1 'leave the options of size out, or pass other weights' $import $size
done
tiny='--steps 1 --seq-len 16 --ops portable' way $import
way --init-from "$keep/few" --vocab-size 100 --synthetic 900
wrong 2 'pass a smaller --seq-len, or other weights' $import --seq-len 64
way $import --seq-len 32
way --init-from "$keep/words" --data "$keep/shard-299.bin" --seq-len 64
wrong 1 'with --init-from, other weights' --init-from "$keep/few"
besides --vocab-size
way --init-from "$keep/gpt2"
wrong 2 'with --init-from, other weights' --init-from "$keep/few" --data LICENSE
besides --vocab-size
way --init-from "$keep/gpt2" --data LICENSE
wrong 1 'with --init-from, other weights' --init-from "$keep/words" --data "$keep/shard-300.bin"
besides --vocab-size
way --init-from "$keep/more-words" --data "$keep/shard-300.bin"

# ---- the data -----------------------------------------------------------------------------------------------------

wrong 1 'a larger --vocab-size' --vocab-size 100
way --vocab-size 256
way --init-from "$keep/gpt2"
wrong 2 '--vocab-size is at least 256' --vocab-size 100 --synthetic 900 --val-data LICENSE
way --synthetic 900 --val-data LICENSE --vocab-size "$(told '[0-9]+')"
way --synthetic 900 --val-data LICENSE --init-from "$keep/gpt2"
wrong 1 '--vocab-size is at least 300' --vocab-size 299 --data "$keep/shard-300.bin"
way --data "$keep/shard-300.bin" --vocab-size "$(told '[0-9]+')"
way --data "$keep/shard-300.bin" --init-from "$keep/more-words"
wrong 1 'a directory of llm.c shards (*.bin), or --data-format bytes for a directory of texts' --data lab1_flatparam
mkdir "$new/shards" && cp "$keep/shard.bin" "$new/shards"
way --data "$new/shards"
way --data lab1_flatparam --data-format bytes
wrong 1 'pass --data-format uint16 or uint32 for tokens without a header, or bytes for a text' --data "$keep/x.bin"
way --data "$keep/x.bin" --data-format "$(told 'uint16')"
way --data "$keep/wide" --data-format "$(told 'uint32')"
way --data "$keep/text" --data-format "$(told 'bytes')"
for file in narrow wide text.gz; do
    wrong 1 'unpack it if it is compressed; pass --data-format uint16 or uint32' --data "$keep/$file"
    way --data "$keep/$file" --data-format "$(told 'bytes')"
done
way --data "$keep/narrow" --data-format "$(told 'uint16')"
way --data "$keep/wide" --data-format "$(told 'uint32')"
gunzip -c "$keep/text.gz" >"$new/text"
way --data "$new/text"
wrong 1 'leave --data-format out' --data "$keep/shard.bin" --data-format uint16
way --data "$keep/shard.bin"
wrong 2 'write the tokens alone, as array.tofile of NumPy does, or leave --data-format out for a text' --data LICENSE --data-format uint16
way --data LICENSE
way --data "$keep/narrow" --data-format uint16
wrong 1 'pass another --data-format if the file has another, or use a model whose --vocab-size is at least' --vocab-size 999 --data "$keep/narrow" --data-format uint32
way --data "$keep/narrow" --data-format uint16 --vocab-size 65536
wrong 1 'copy the file again, or pass another --data-format' --data "$keep/odd" --data-format uint16
way --data "$keep/odd" --data-format bytes
way --data "$keep/narrow" --data-format uint16
wrong 2 'pass --data-format uint32' --data "$keep/wide" --data-format uint16
way --data "$keep/wide" --data-format "$(told 'uint32')"
for what in --data --val-data; do # hints that would mislead if they named one of the two
    wrong 2 '--seq-len 9 or less, or more data' $what "$keep/short"
    way $what "$keep/short" --seq-len "$(told '[0-9]+')"
    way $what LICENSE
    wrong 1 'check the path' $what "$keep/none"
    way $what "$keep/text"
    besides --data --val-data
    wrong 1 'check the pattern' $what "$keep/*.none"
    way $what "$keep/tex[t]"
    besides --data --val-data
    wrong 1 'pass a regular file, a directory or a glob' $what /dev/null
    way $what lab1_flatparam --data-format bytes
    wrong 1 'pass more data' $what "$keep/empty"
    way $what LICENSE
done
wrong 1 'pass more data' --synthetic 1
way --synthetic 100
wrong 1 '--seq-len 9 or less, or more data' --synthetic 10
way --synthetic 10 --seq-len "$(told '[0-9]+')"
way --synthetic 100
wrong 1 'check the path' --data "$keep/text" --data-mask "$keep/none"
way --data "$keep/text" --data-mask "$keep/mask"
besides --data --val-data
tokens="--init-from $keep/words"
wrong 2 "if the model's tokens are bytes, pass --data-format bytes" $tokens --data LICENSE
way $tokens --data "$keep/shard-299.bin"
way $tokens --data LICENSE --data-format bytes
wrong 1 'pass --data with tokens, which' $tokens
way $tokens --data "$keep/shard-299.bin"
wrong 1 'pass --val-data that was made as --data was' --vocab-size 300 --data "$keep/shard-300.bin" --val-data LICENSE
way --vocab-size 300 --data "$keep/shard-300.bin" --val-data "$keep/shard-300.bin"
besides --data
wrong 2 'mend the mask, or pass a larger --global-batch' --data "$keep/text" --data-mask "$keep/late-mask" --global-batch 6
way --data "$keep/text" --data-mask "$keep/mask" --global-batch 6
way --data "$keep/text" --data-mask "$keep/late-mask" --global-batch 12
besides --eval-batches
validated="--data $keep/text --val-data $keep/text --val-mask $keep/late-mask"
wrong 2 'in an evaluation also --eval-batches' $validated --global-batch 6 --eval-batches 1
way $validated --global-batch 6 --eval-batches 2
way $validated --global-batch 12 --eval-batches 1
tiny="--model mnist --size tiny --steps 1 --batch-size 1"
for what in --data --val-data; do
    wrong 1 'for drawn digits leave --data out and pass --val-data digits' $what "$keep"
    way $what "$keep/images"
    way --val-data digits --eval-batches 1
    besides --data
done
wrong 1 'leave --data-format, --data-mask and --val-mask out' --data "$keep/images" --data-mask "$keep/text" \
    --val-data "$keep/images" --val-mask "$keep/text" --data-format bytes
way --data "$keep/images" --val-data "$keep/images"
tiny=$small

# ---- numbers of ranks, batches and groups -------------------------------------------------------------------------------

wrong 3 'pass a --global-batch that the number of ranks divides' --global-batch 7
way --global-batch 6
wrong 2 'pass a --global-batch that world size * --batch-size * --grad-accum gives, or leave the last two out' \
    --global-batch 12 --batch-size 2 --grad-accum 2
way --global-batch 8 --batch-size 2 --grad-accum 2
way --global-batch 12
wrong 1 'pass a smaller --batch-size and a larger --grad-accum' --plan --batch-size 65536 --seq-len 1025 --n-positions 2000
way --plan --batch-size 32 --grad-accum 2048 --seq-len 1025 --n-positions 2000
wrong 1 'pass --batch-size 1 and a larger --grad-accum, or --reduction fast' --reduction canonical --batch-size 9 --global-batch 9
way --reduction canonical --batch-size 1 --grad-accum 9 --global-batch 9
way --reduction fast --batch-size 9 --global-batch 9
wrong 2 'pass powers of two, such as --batch-size 4 --grad-accum 8, or --reduction fast' --reduction canonical --batch-size 3 --no-sync
way --reduction canonical --no-sync $(told '--batch-size [0-9]+ --grad-accum [0-9]+')
way --batch-size 3 --no-sync --reduction fast
wrong 2 'pass --sharding none' --sharding hybrid --fsdp-size 1
way --sharding none
wrong 3 "pass a shard group's size that divides the number of ranks" --sharding hybrid --fsdp-size 2
way --sharding hybrid --fsdp-size 3
wrong 4 'pass the ranks of a host, if that is such a divisor, or leave --reshard-to out' --reshard-to 4
way --reshard-to 2
way
wrong 3 'or leave --reshard-to out' --reshard-to 2
way
wrong 1 'run it with --comm auto' --comm nccl
way --comm auto
# shellcheck disable=SC2317 # called by wrong_run
first_rank() { # every rank prints this one: no rank knows yet that others fail alike
    launch "$@"
    awk '!/^HINT: / || !n++' "$work/err" >"$work/once"
    mv "$work/once" "$work/err"
}
wrong_run 2 'leave --comm out, or choose another --device' first_rank 2 $tiny --comm nccl
way
besides --device # of a GPU
wrong 2 "leave --comm out, or start it with MPICH's mpiexec" --comm mpi
way
if [ -z "$NO_MPI" ]; then
    starts=$MPI_LAUNCHER way --comm mpi
fi
wrong 2 'without a launcher' --comm self
way
way_run launch 1 $tiny --comm self
wrong 2 '--parallel single without a launcher' --parallel single
way_run run_of $(told '\S*fsdp_train --parallel single') $tiny
besides --parallel # the same words, without the launcher

# ---- options that need others -----------------------------------------------------------------------------------------

data="--data $keep/text"
wrong 1 'pass --synthetic 0, or leave --data out' $data --synthetic 900
way $data --synthetic 0
way --synthetic 900
wrong 1 'pass --data PATH or --val-data PATH, or leave --data-format out' --data-format bytes
way --data-format bytes $data
way --data-format bytes --val-data "$keep/text"
way
wrong 1 'pass --data PATH, or leave --data-mask out' --data-mask "$keep/mask"
way --data-mask "$keep/mask" $data
way
wrong 1 'pass --val-data PATH, or leave --val-mask out' --val-mask "$keep/mask"
way --val-mask "$keep/mask" --val-data "$keep/text"
way
states="--export-optimizer $new/states"
wrong 1 'pass --momentum, or another --optimizer than sgd, or leave --export-optimizer out' $states --optimizer sgd
way $states --optimizer adamw
way $states --optimizer adadelta
way $states --optimizer sgd --momentum 0.9
way --optimizer sgd
wrong 1 'pass --digests FILE, or leave --digest-values out' --digest-values 0:h.0
way --digest-values 0:h.0 --digests "$new/digests"
way
wrong 1 'pass --save DIR, or leave --resume auto out' --resume auto
way --resume auto --save "$new/saved"
way
for what in --save-async --save-every=2 --keep=1 --keep=0; do
    wrong 1 "pass --save DIR, or leave ${what%=*} out" $what
    way $what --save "$new/saved"
    way
    way $what --save "$new/planned" --plan
done
wrong 1 'pass --export DIR or --export-init DIR, or leave --export-shard-size out' --export-shard-size 1 --export-optimizer "$new/states"
way --export-shard-size 1 --export "$new/export"
way --export-shard-size 1 --export-init "$new/init"
way --export-optimizer "$new/states"
wrong 1 'pass --val-data PATH, or leave --eval-every out' --eval-every 1 --eval-only
way --eval-every 1 --val-data "$keep/text"
way --eval-only
wrong 1 'pass --val-data PATH or --eval-only, or leave --eval-batches out' --eval-batches 1
way --eval-batches 1 --val-data "$keep/text"
way --eval-batches 1 --eval-only
way
wrong 1 'pass --optimizer-offload or --cpu-offload, or leave --offload-piece out' --device separate --offload-piece 1
way --device separate --offload-piece 1 --optimizer-offload
way --device separate --offload-piece 1 --cpu-offload
way --device separate
for what in --loss-csv --digests --profile; do
    wrong 2 "pass no --eval-only (which makes no steps), or leave $what out" --eval-only $what "$new/$what"
    way $what "$new/$what" --steps 2
    way --eval-only
done
# At its default an option counts as left out.
if case_is 'options at their defaults need no others' 1; then
    good 1 $tiny --keep 2 --save-every 0 --eval-every 0 --eval-batches 0 --export-shard-size 4768 --offload-piece 32 --beta1 0.9 --beta2 0.95 \
        --optimizer sgd --momentum 0 --rho 0.9 --lr-step-size 0 --data-format auto --synthetic 900
    [ ! -s "$work/err" ] || complain 'wrote to stderr'
fi
for offload in --cpu-offload --optimizer-offload; do
    shards="--device separate $offload"
    wrong 1 "pass --parallel fsdp and a --sharding that shards, or leave $offload out" $shards --sharding none --parallel ddp
    for sharding in full optimizer; do
        way $shards --parallel fsdp --sharding $sharding
    done
    way --device separate --sharding none --parallel ddp
    wrong 1 'pass --device separate, whose memory the host cannot reach, or leave it out' $offload
    way $offload --device separate
    way
done
timed="--plan --plan-device 910b --device separate"
copies='pass --plan-copies UP,DOWN,LATENCY or the profile of a run on a device with memory of its own, or leave offload out'
wrong 1 "$copies" $timed --cpu-offload
way $timed --cpu-offload --plan-copies 25e9,25e9,1e-5
way $timed
from="--plan --device separate --plan-prices"
wrong 1 "$copies" $from "$keep/profile/profile-rank-0.csv" --cpu-offload
way $from "$keep/profile/profile-rank-0.csv" --cpu-offload --plan-copies 25e9,25e9,1e-5
way $from "$keep/profile/profile-rank-0.csv"
good 1 $tiny --profile "$new/profile" --steps 2 --device separate --cpu-offload
way $from "$new/profile/profile-rank-0.csv" --cpu-offload
wrong 1 'pass --parallel fsdp, or leave --print-shards out' --print-shards --parallel ddp
way --print-shards --parallel fsdp
way --parallel ddp
wrong 1 'pass --parallel fsdp, or leave --layout per-param out' --layout per-param --parallel ddp
way --layout per-param --parallel fsdp
way --parallel ddp
for not in --sharding\ none --parallel\ ddp; do
    wrong 1 'pass --parallel fsdp and a --sharding that reshards, or leave --reshard-after step out' --reshard-after step $not
    for sharding in grad-op full; do
        way --reshard-after step --parallel fsdp --sharding $sharding
    done
    way $not
done
wrong 4 'pass --parallel fsdp, --sharding full or hybrid, and --reshard-after use (hybrid: with --fsdp-size N), or leave --reshard-to out' \
    --reshard-to 2 --sharding grad-op
way --reshard-to 2 --parallel fsdp --sharding full --reshard-after use
way --reshard-to 2 --parallel fsdp --sharding hybrid --fsdp-size 4 --reshard-after use
way --sharding grad-op
wrong 4 'pass --reduction fast and --sharding hybrid --fsdp-size N, of several groups, or leave --no-sync=replicas out' --no-sync=replicas
way --no-sync=replicas --reduction fast --sharding hybrid --fsdp-size 2
way
wrong 1 'pass --parallel fsdp and --sharding full or hybrid, or leave --plan-fsdp-size out' --plan-ranks 4 --plan-fsdp-size 2 --sharding none
way --plan-ranks 4 --plan-fsdp-size 2 --parallel fsdp --sharding full
way --plan-ranks 4 --plan-fsdp-size 2 --parallel fsdp --sharding hybrid
way --plan-ranks 4 --sharding none
wrong 2 'pass --sharding hybrid, or leave --fsdp-size out' --fsdp-size 2
way --fsdp-size 2 --sharding hybrid
way
wrong 2 'pass --fsdp-size N, or leave --sharding hybrid out' --sharding hybrid
way --sharding hybrid --fsdp-size 2
way

# ---- plans ---------------------------------------------------------------------------------------------------------

for what in --data --val-data --resume; do
    wrong 1 "check the path given to $what" --plan $what "$keep/none"
    way --plan $what "$([ $what = --resume ] && echo "$keep/saved" || echo LICENSE)"
done
wrong 1 'pass a profile-rank-R.csv, which --profile DIR writes into DIR' --plan-prices "$keep/none"
way --profile "$new/profile" --steps 2
way --plan-prices "$new/profile/profile-rank-0.csv"
prices="--plan-prices $keep/profile/profile-rank-0.csv"
wrong 1 'pass --plan-device none, or leave --plan-prices out' $prices --plan-device h100
way $prices --plan-device none
way --plan-device h100
for what in --plan-link\ 12.5e9,20e-6 --plan-copies\ 25e9,25e9,1e-5; do
    wrong 1 "pass --plan-device NAME or --plan-prices FILE, or leave ${what% *} out" --plan $what
    way --plan $what --plan-device h100
    way --plan $what $prices
    way --plan
done
wrong 1 'pass --plan-link RATE,LATENCY, or leave --plan-prices out' $prices --plan-ranks 2
way $prices --plan-ranks 2 --plan-link 12.5e9,20e-6
way --plan-ranks 2
for what in --plan-device\ this --bucket\ auto; do
    wrong 1 "pass --plan-link RATE,LATENCY or several ranks, which measure their link, or leave $what out" --plan-ranks 2 $what
    way --plan-ranks 2 $what --plan-link 12.5e9,20e-6
    way_run launch 2 $tiny --plan-ranks 2 $what
    way --plan-ranks 2
done
wrong 1 'ranks count from 0; --plan-ranks says how many there are' --plan-ranks 4 --plan-rank 4
way --plan-ranks 4 --plan-rank 3
way --plan-ranks 5 --plan-rank 4
wrong 1 'pass bytes per second and seconds: --plan-link ' --plan-device h100 --plan-link fast
way --plan-device h100 $(told '--plan-link \S*')
wrong 1 'pass bytes per second, twice, and seconds: --plan-copies ' --plan-device h100 --plan-copies 25e9
way --plan-device h100 $(told '--plan-copies \S*')

# ---- the recipe -----------------------------------------------------------------------------------------------------

wrong 1 'pass --optimizer sgd, or leave --momentum out' --momentum 0.9
way --momentum 0.9 --optimizer sgd
way
for optimizer in adamw sgd; do
    wrong 1 'pass --optimizer sgd and --momentum M, or leave --nesterov out' --nesterov --optimizer $optimizer
    way --nesterov --optimizer sgd --momentum 0.9
    way --optimizer $optimizer
    besides --optimizer
done
for what in --beta1 --beta2; do
    for optimizer in sgd adadelta; do
        wrong 1 "pass --optimizer adamw" $what 0.8 --optimizer $optimizer
        way $what 0.8 --optimizer adamw
        way --optimizer $optimizer
        besides --optimizer
    done
done
wrong 1 'pass --optimizer adamw' --eps 1e-7 --optimizer sgd
way --eps 1e-7 --optimizer adamw
way --eps 1e-7 --optimizer adadelta
way --optimizer sgd
wrong 1 'pass --optimizer adadelta, or leave --rho out' --rho 0.8
way --rho 0.8 --optimizer adadelta
way
wrong 1 'pass --lr-schedule cosine or linear, or leave --min-lr out' --min-lr 1e-5 --lr-schedule constant
way --min-lr 1e-5 --lr-schedule cosine
way --min-lr 1e-5 --lr-schedule linear
way --lr-schedule constant
wrong 1 'pass --lr-step-size N, or leave --lr-schedule step out' --lr-schedule step
way --lr-schedule step --lr-step-size 2
way
wrong 1 'pass --lr-schedule step, or leave --lr-step-size out' --lr-step-size 2
way --lr-step-size 2 --lr-schedule step
way
wrong 1 'pass --lr-schedule step and --lr-step-size N, or leave --lr-gamma out' --lr-gamma 0.5
way --lr-gamma 0.5 --lr-schedule step --lr-step-size 2
way
no_norm='--no-grad-norm --clip-grad 0'
for not in --parallel\ ddp --optimizer\ adamw --optimizer\ sgd\ --momentum\ 0.9 --optimizer\ sgd\ --weight-decay\ 0.1; do
    wrong 1 'pass --parallel fsdp and --optimizer sgd, without momentum, weight decay and offload, or leave --no-grad-norm out' $no_norm $not
    way $no_norm --parallel fsdp --optimizer sgd
    way --clip-grad 0 $not
    besides --optimizer
done
wrong 1 'pass --clip-grad 0, or leave --no-grad-norm out' --no-grad-norm --optimizer sgd
way --no-grad-norm --optimizer sgd --clip-grad 0
way --optimizer sgd
wrong 1 'pass neither --save nor --export-optimizer, --plan-device, --plan-prices or --bucket auto, or leave --eval-only out' \
    --eval-only --save "$new/saved" --export-optimizer "$new/states" --plan-device h100
way --eval-only
way --save "$new/saved" --export-optimizer "$new/states" --plan-device h100
besides --plan-prices --bucket
wrong 1 'pass --wrap block, --wrap sub-block, --wrap size:100000 or --wrap model' --wrap size:0
for wrap in $(told '--wrap .*' | grep -oE -- '--wrap [a-z0-9:-]+' | cut -d' ' -f2); do
    way --wrap "$wrap"
done
wrong 1 'pass --bucket 20000000, --bucket auto or --bucket block' --bucket many
for bucket in $(told '--bucket .*' | grep -oE -- '--bucket [a-z0-9]+' | cut -d' ' -f2); do
    way --bucket "$bucket"
done
wrong 2 'pass a larger --bucket, or --bucket block' --bucket 1
way --bucket "$(sed -n 's/.*at least the \([0-9]*\) of the smallest unit/\1/p' "$work/err")"
way --bucket block
diverging='--optimizer sgd --clip-grad 0 --lr 1000 --warmup-steps 0 --steps 20'
wrong 1 'lower --lr, add --warmup-steps or set --clip-grad 1' $diverging
way $diverging --lr 1e-3
way $diverging --warmup-steps 100000
way $diverging --clip-grad 1

# ---- memory --------------------------------------------------------------------------------------------------------

# 6.015 MiB on each of two ranks, 5.971 on each of four: each way saves some of it.
tiny='--n-layer 4 --d-model 64 --n-head 2 --vocab-size 560 --seq-len 32 --batch-size 4 --ops portable --steps 1 --synthetic 3000'
much='use --gradient-checkpointing, --chunk-loss, more ranks, --sharding full, a smaller --size, --batch-size or --seq-len; --plan'
few='--device-memory 6 --sharding none'
wrong 2 "$much" $few
way $few --gradient-checkpointing
way $few --chunk-loss=16
way_run launch 4 $tiny $few
way $few --sharding full
way $few --batch-size 2
way $few --seq-len 16
way $few --plan
besides --size
few='--batch-size 1 --device separate --cpu-offload --device-memory 2'
wrong 1 'use a smaller --offload-piece (the device holds two), --gradient-checkpointing' $few
way $few --offload-piece 0.05
besides --gradient-checkpointing --chunk-loss --sharding --size --batch-size --seq-len --plan
tiny="$small --synthetic 900"
wrong 1 "$much" --size small --d-model 0 --n-layer 0 --n-head 0 --device-memory 6
way --size tiny --d-model 0 --n-layer 0 --n-head 0 --device-memory 6
besides --gradient-checkpointing --chunk-loss --sharding --batch-size --seq-len --plan
tiny=$small

# ---- outputs and checkpoints ------------------------------------------------------------------------------------------

wrong 1 'pass another path to --memory-report' --loss-csv "$new/a" --memory-report "$new/a"
way --loss-csv "$new/a" --memory-report "$new/b"
wrong 1 'pass another path to --loss-csv' --data "$keep/text" --loss-csv "$keep/text"
way --data "$keep/text" --loss-csv "$new/a"
wrong 1 'pass a directory that --save wrote' --resume "$new/none"
way --save "$new/none"
way --resume "$new/none"
wrong 1 'pass --resume auto to go on with that run, or another --save directory' --save "$keep/saved" --reduction canonical
cp -r "$keep/saved" "$new/saved"
way --save "$new/saved" --reduction canonical --steps 2 --resume auto
way --save "$new/other" --reduction canonical
good 1 $tiny --steps 3 --save "$keep/third"
mkdir "$keep/mixed" && cp -r "$keep/saved/." "$keep/mixed" && cp -r "$keep/third/step-3" "$keep/mixed/step-1"
resumes="--steps 2 --reduction canonical --resume auto"
wrong 1 'move it away, or pass another --save directory' $resumes --save "$keep/mixed"
way --steps 2 --reduction canonical --resume "$keep/saved" --save "$new/other"
cp -r "$keep/mixed" "$new/moved" && mv "$new/moved/step-1" "$new/away"
way $resumes --save "$new/moved"
mkdir -p "$keep/odd-latest/latest"
wrong 1 'pass another --save directory' --save "$keep/odd-latest"
way --save "$new/other"
mkdir "$keep/old" && : >"$keep/old/meta.json" && : >"$keep/old/rank-00000.ckpt"
wrong 1 'or begin anew with another --save directory' --save "$keep/old"
way --save "$new/other"

# Each fact that --resume-change may name differs: the hint names them all.
head -c 800 LICENSE >"$keep/other-text" && head -c 800 "$keep/mask" >"$keep/other-mask"
good 2 $tiny --data "$keep/text" --data-mask "$keep/mask" --optimizer sgd --momentum 0.5 --save "$keep/first"
good 2 $tiny --data "$keep/text" --optimizer adadelta --save "$keep/adadelta"
changed="--data $keep/other-text --data-mask $keep/other-mask --seq-len 8 --global-batch 4 --lr 1e-4 --seed 2 --param-dtype bf16
    --reduce-dtype bf16 --reduction canonical --freeze transformer.wte.weight --clip-grad 2 --steps 3 --reshard-after use"
meant='pass what that run had, or --resume-change '
wrong 2 "$meant" --optimizer sgd --momentum 0.7 --weight-decay 0.2 $changed --resume "$keep/first"
way --optimizer sgd --momentum 0.7 --weight-decay 0.2 $changed --resume "$keep/first" $(told '--resume-change \S*')
way --optimizer sgd --momentum 0.5 --data "$keep/text" --data-mask "$keep/mask" --resume "$keep/first"
wrong 1 "$meant" --optimizer adadelta --rho 0.8 --eps 1e-5 $changed --resume "$keep/adadelta"
way --optimizer adadelta --rho 0.8 --eps 1e-5 $changed --resume "$keep/adadelta" $(told '--resume-change \S*')
wrong 3 "$meant" --beta1 0.8 $changed --global-batch 6 --batch-size 2 --resume "$keep/saved"
way --beta1 0.8 $changed --global-batch 6 --batch-size 2 --resume "$keep/saved" $(told '--resume-change \S*')
way_run launch 2 $tiny --steps 2 --reduction canonical --global-batch 4 --resume "$keep/saved"
wrong 1 'resume with the model options of the run that saved it' --n-layer 2 --resume "$keep/saved"
way --steps 2 --reduction canonical --resume "$keep/saved"
wrong 1 'resume with the optimizer options of the run that saved it' --optimizer sgd --resume "$keep/saved"
way --steps 2 --reduction canonical --resume "$keep/saved"
wrong 1 'name what the message of --resume named' --resume "$keep/saved" --steps 2 --resume-change everything
way --resume "$keep/saved" --steps 2 --resume-change reduction,schedule
besides --resume

# Step 2 overflows second moments and step 3 parameters, as in checkpoints.sh.
diverging="--n-layer 3 --seq-len 8 --synthetic 5000 --global-batch 2 --beta2 0 --warmup-steps 0 --steps 3 --lr-schedule constant
    --lr 1000 --clip-grad 0"
good 1 $tiny $diverging --steps 1 --save "$keep/finite"
resumes="$diverging --resume $new/finite --save $new/finite"
rm -rf "${new:?}"/*
wrong 1 'resume from step 1, which is finite, with a lower --lr or with --clip-grad 1' $diverging --save "$new/finite" --save-every 1
for lower in --lr\ 1e-3 --clip-grad\ 1; do
    chosen && cp -r "$new/finite" "$new/copy"
    way $diverging --resume "$new/copy" $lower $(told '--resume-change \S*')
    rm -rf "$new/copy"
done
wrong 1 'lower --lr, add --warmup-steps or set --clip-grad 1' $diverging --export "$new/export"
way $diverging --lr 1e-3 --export "$new/export"
way $diverging --warmup-steps 100000 --export "$new/export"
way $diverging --clip-grad 1 --export "$new/export"
wrong 1 'pass a step that this run makes, and one of its units: ' --digests "$new/digests" --digest-values 1:root
for unit in $(told 'units: .*' | cut -d: -f2 | tr -d ,); do
    way --digests "$new/digests" --digest-values "0:$unit"
done

# ---- the other programs ----------------------------------------------------------------------------------------------

two='pass two files of --loss-csv, or --bisect and two files of --digests'
wrong_run 1 "$two" timed "$bin/fsdp_compare" "$keep/a.csv"
good 1 $tiny --steps 2 --reduction canonical --loss-csv "$new/a.csv" --digests "$new/a.digests"
way_run timed "$bin/fsdp_compare" "$keep/a.csv" "$new/a.csv"
way_run timed "$bin/fsdp_compare" --bisect "$keep/a.digests" "$new/a.digests"
besides --loss-csv --digests
wrong_run 1 "$two" timed "$bin/fsdp_compare" "$keep/text" "$keep/a.csv"
way_run timed "$bin/fsdp_compare" "$keep/a.csv" "$keep/a.csv"
way_run timed "$bin/fsdp_compare" --bisect "$keep/a.digests" "$keep/a.digests"
besides --loss-csv --digests
wrong_run 1 'pass files that --digests wrote, whole' timed "$bin/fsdp_compare" --bisect "$keep/a.csv" "$keep/a.csv"
way_run timed "$bin/fsdp_compare" --bisect "$keep/a.digests" "$keep/a.digests"
besides --digests
wrong_run 1 'make both runs with --reduction canonical' timed "$bin/fsdp_compare" --bisect "$keep/fast.digests" "$keep/fast.digests"
way --reduction canonical --digests "$new/a.digests" --steps 2
way_run timed "$bin/fsdp_compare" --bisect "$new/a.digests" "$keep/a.digests"
for words in '' "$keep/gpt2" '--prompt x'; do
    wrong_run 1 'fsdp_generate DIR --prompt TEXT' timed "$bin/fsdp_generate" $words
    way_run run_of $(told '/\S*') "$keep/gpt2" --prompt TEXT
    besides --prompt
done
wrong_run 1 "such as --prompt '464 3290'" timed "$bin/fsdp_generate" "$keep/words" --prompt 'a text'
good 1 $tiny --vocab-size 4000 --export "$new/words"
way_run timed "$bin/fsdp_generate" "$new/words" --length 2 --prompt "$(told "'[0-9 ]+'" | tr -d "'")"
wrong_run 1 'pass --prompt with one token number or more' timed "$bin/fsdp_generate" "$keep/words" --prompt ' '
way_run timed "$bin/fsdp_generate" "$keep/words" --length 2 --prompt 7
for what in --top-k --seed; do
    wrong_run 1 "pass --temperature X, or leave $what out" timed "$bin/fsdp_generate" "$keep/gpt2" --length 2 --prompt x $what 3
    way_run timed "$bin/fsdp_generate" "$keep/gpt2" --length 2 --prompt x $what 3 --temperature 1
    way_run timed "$bin/fsdp_generate" "$keep/gpt2" --length 2 --prompt x
done
wrong_run 1 'pass --restarts N, or leave --restart-pause out' timed "$bin/fsdp_run" -n 1 --restart-pause 2 true
way_run timed "$bin/fsdp_run" -n 1 --restart-pause 2 --restarts 1 true
way_run timed "$bin/fsdp_run" -n 1 true
wrong_run 1 'fsdp_run -n 4 ' timed "$bin/fsdp_run" -n 4
way_run run_of $(told '/.*') --steps 1
besides --size
wrong_run 1 'give the path of a program, as in ' timed "$bin/fsdp_run" -n 2 fsdp_no_such
way_run timed "$bin/fsdp_run" -n 2 "$(told '/\S*')" $tiny
FSDP_RUN=garbage wrong_run 1 'leave fsdp_run out: ' timed "$bin/fsdp_run" -n 2 "$bin/fsdp_train" $tiny
way_run timed "$bin/fsdp_run" -n 2 "$bin/fsdp_train" $tiny
[ -n "$NO_MPI" ] || way_run timed $MPI_LAUNCHER -n 2 "$bin/fsdp_train" $tiny
check_taken

# ---- every hint of the sources -----------------------------------------------------------------------------------------

# A text of the sources is followed if it is the one with the most letters that fits a hint above.
# shellcheck disable=SC2046 # names without blanks
awk -f tests/cli/hints.awk $(find trainer common lab*_* -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.cpp') >"$work/hints"
unfollowed | sed -n 's/^    //p' >"$work/unfollowed"
judge_hints() {
    local file text pattern best line
    declare -A fits=() known=() files=()
    # A conversion of printf stands for any text, and so does the folder of a program.
    sort -u "$work/hints" >"$work/each"
    while IFS=$'\t' read -r file text pattern; do
        fits[$text]=$pattern files[$text]=$file
    done < <(cut -f2 "$work/each" | sed -E 's/[][\\?*]/\\&/g; s/%+[^a-z %]*[a-z]+|build\//*/g' | paste "$work/each" -)
    while IFS= read -r line; do
        best=
        for text in "${!fits[@]}"; do
            # shellcheck disable=SC2053 # a pattern
            [[ $line != ${fits[$text]} ]] || [ ${#best} -ge ${#text} ] || best=$text
        done
        [ -z "$best" ] || known[$best]=1
        [ -n "$best" ] || [[ $line != *--[a-z]* ]] || complain "hints.awk did not find: $line"
    done < <(sort -u "$work/shown")
    while IFS= read -r line; do
        [ -n "${fits[$line]-}" ] || complain "in the list, and in no source: $line"
        [ -z "${known[$line]-}" ] || complain "in the list, but followed: $line"
        known[$line]=1
    done <"$work/unfollowed"
    for text in "${!fits[@]}"; do
        [ -n "${known[$text]-}" ] || complain "${files[$text]}: nothing follows: $text"
    done
    [ ${#fits[@]} -gt 100 ] || complain "only ${#fits[@]} hints were found"
}
if [ -z "${CASES:-}" ] && case_is 'each hint of the sources that names an option is followed, or has a reason'; then
    judge_hints
fi
# Options that hints name exist.
case_is 'hints name options that exist'
for program in train generate run; do
    "$bin/fsdp_$program" --help
done >"$work/help"
for option in $(cut -f2 "$work/hints" | grep -oE -- '--[a-z][a-z0-9-]*' | sort -u); do
    case $option in
    --name | --mpi | --bisect) ;; # a placeholder, srun's, fsdp_compare's
    *) grep -qE -- "(^|[ ,])$option([=[ ]|\$)" "$work/help" || complain "no $option: $(grep -F -m1 -- "$option" "$work/hints")" ;;
    esac
done
cli_end
