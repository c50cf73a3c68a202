#!/bin/sh
# run_lab.sh -- show what a lab's code does: train a tiny GPT-2 on 1, 2, 3 and 4 ranks and say in words what was compared.
#
#   tests/grade/run_lab.sh [--check] LAB [BUILD]           (make run LAB=3)
#
# Lab by lab, compares
#   1  the initial weights, joined from the ranks' shards, with the weights of one device
#   2  the loss of the first batch with the loss in training (tests/reference/tiny.csv)
#   3  20 steps of SGD with the steps of one device (tests/reference/tiny-sgd.csv)
#   4  20 steps of AdamW, with another number of ranks after step 10, with one rank and with tests/reference/tiny.csv
#   5  20 steps with prefetch with 20 steps without; also reports the share of communication hidden over a slow link
#   6  3 steps on the stand-in for an NPU with one rank there and with tests/reference/tiny.csv
#
# LAB=N runs the code of labs 1 to N and no later lab's. Exit status: 0 all as expected; 1 a difference, or an unwritten task,
# whose number is printed; 2 usage. --check checks LAB and runs nothing.
# shellcheck disable=SC2086 # lists of words
set -u
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
check=''
[ "${1:-}" = --check ] && check=yes && shift
lab=${1:-} BUILD=${2:-build}
labs=$(awk '!/^#/ && NF { print substr($1, 1, 1) }' "$here/tasks.txt" | sort -u)
if ! printf '%s\n' "$labs" | grep -qxF -e "$lab"; then
    echo "run_lab.sh: got LAB=\"$lab\", expected a lab from 1 to $(echo "$labs" | tail -1)" >&2
    echo "HINT: make run LAB=2 once the tasks of labs 1 and 2 pass" >&2
    exit 2
fi
[ -z "$check" ] || exit 0
FSDP_TOOLS=$here/../tools && . "$FSDP_TOOLS/env.sh"
reference=$here/../reference top=$here/../..
dir=$(mktemp -d "${TMPDIR:-/tmp}/fsdp-run.XXXXXX") || exit 2
trap 'rm -rf "$dir"' EXIT
trap 'exit 130' INT TERM HUP
export FSDP_TIMEOUT_S="${FSDP_TIMEOUT_S:-10}" # name a hanging rank soon
# The recipe of the files in tests/reference, whose bits do not depend on the machine.
tiny='--size tiny --seq-len 32 --global-batch 24 --synthetic 100000 --reduction canonical'
portable='--ops portable' sgd='--optimizer sgd --clip-grad 0 --no-grad-norm --lr 0.1 --lr-schedule constant --warmup-steps 0'
# Relative bands of loss and norm: eight units in the last place, eight times the effect of three other orders of AdamW's
# operations (tests/grade/tiny_lib.c). Your AdamW may use another order, and an NPU has its own.
band='8.8e-7 9.6e-7'
bad=0

# first_unwritten -- the first task with points in labs 1 to LAB that is still a stub
first_unwritten() {
    awk -v lab="$lab" '!/^#/ && $2 > 0 && substr($1, 1, 1) <= lab { print $1 }' "$here/tasks.txt" | while read -r task; do
        grep -hF "fsdp_todo(\"$task\")" "$top"/lab"${task%%.*}"_*/*.c* | grep -qv 'STUB:' && echo "$task" && break
    done
}

# stopped W LOG -- report a run that failed or that went on without a task
stopped() {
    task=$(sed -n 's/.*task \([0-9.a-z]*\) is not implemented.*/\1/p' "$2" | head -1)
    if [ -n "$task" ]; then
        first=$(first_unwritten)
        first=${first:-$task}
        echo "run: lab $lab cannot run yet: task $first is not written" >&2
        echo "HINT: do task $first first: make test LAB=${first%%.*} TASK=$first" >&2
    else
        echo "FAIL run: lab $lab: the run on $1 rank(s) failed:"
        tail -8 "$2" | sed 's/^/     /'
        echo "HINT: make test LAB=$lab RANKS=$1 names the task"
    fi
    exit 1
}

# train W NAME OPTION... -- output goes to $dir/NAME-W.log, losses to $dir/NAME-W.csv
train() {
    w=$1 run=$dir/$2-$1
    shift 2
    "$FSDP_TOOLS/limit.sh" 60 "$BUILD/fsdp_run" --no-prefix -n "$w" "$BUILD/fsdp_train" $tiny --loss-csv "$run.csv" "$@" >"$run.log" 2>&1 &&
        ! grep -q '^note: .* is not implemented' "$run.log" || stopped "$w" "$run.log"
}

# same W WHAT GOT EXPECTED [BAND_LOSS BAND_NORM] -- the steps of the two files agree in loss and norm, bit for bit or within
# relative bands. EXPECTED may have more steps. Otherwise a FAIL line says where they differ. $most: the largest relative difference
same() {
    said=$(awk -F, -v band_loss="${5:-0}" -v band_norm="${6:-0}" '
        function off(got, want) { return got "" == want "" ? 0 : got ~ /nan/ || want ~ /nan/ ? 1 : (got > want ? got - want : want - got) / want }
        function look(what, got, want, band, d) {
            d = off(got, want)
            most = d > most ? d : most
            if (d <= band && (band > 0 || got "" == want "")) return
            printf "step %s, %s: got %s, expected %s\n", $1, what, got, want
            stopped = 1
            exit
        }
        FNR == 1 { next }
        NR == FNR { loss[$1] = $2; norm[$1] = $3; n++; next }
        $1 in loss { look("loss", loss[$1], $2, band_loss); look("gradient norm", norm[$1], $3, band_norm); n_compared++ }
        END {
            if (stopped) exit
            if (n_compared == 0 || n_compared != n) printf "%d steps, of which %d are in the other file\n", n, n_compared
            else printf "most %.2g\n", most
        }' "$3" "$4")
    most=${said#most }
    [ "$said" != "$most" ] && return
    echo "FAIL run: lab $lab: W=$1 against $2: $said"
    bad=1
}

# first_last W NAME -- print the first and the last step of a run
first_last() {
    awk -F, -v w="$1" 'NR == 2 { first = $2 } END { printf "  W=%s  %d steps, loss %s -> %s\n", w, NR - 1, first, $2 }' "$dir/$2-$1.csv"
}

# all NAME WHAT EXPECTED OPTION... -- train on 1 to 4 ranks, and compare each run with the file EXPECTED, which WHAT names
all() {
    name=$1 what=$2 expected=$3
    shift 3
    for w in 1 2 3 4; do
        train "$w" "$name" "$@"
        first_last "$w" "$name"
        same "$w" "$what" "$dir/$name-$w.csv" "$expected"
    done
}

# bytes W NAME ROW -- print planned and measured bytes of a kind of memory
bytes() { awk -F, -v row="$3" '$1 == "memory" && $2 == row { print $4 }' "$dir/$2-$1.mem"; }

end() {
    [ $bad -ne 0 ] && echo "HINT: make test LAB=$lab names the task" && exit 1
    echo "PASS run: lab $lab: $1"
    exit 0
}

lab1() {
    train 1 whole --steps 0 --parallel single --export "$dir/whole"
    for w in 1 2 3 4; do
        train $w shards --steps 0 --export "$dir/$w" --memory-report "$dir/shards-$w.mem" --print-shards
        echo "  W=$w  a rank holds $(bytes $w shards params_shard) bytes of parameters"
        cmp -s "$dir/whole/model.safetensors" "$dir/$w/model.safetensors" && continue
        echo "FAIL run: lab 1: W=$w: the joined shards are not the weights of one device: $(cmp "$dir/whole/model.safetensors" "$dir/$w/model.safetensors" 2>&1 | sed 's/.*differ: //')"
        bad=1
    done
    echo '  which rank of 4 holds what (--print-shards):'
    sed -n '/^shards:/,/^fsdp:/{/^fsdp:/!s/^/    /p}' "$dir/shards-4.log"
    end "the initial weights, joined from the shards of 1, 2, 3 and 4 ranks, equal the weights of one device that cuts nothing: the same $(wc -c <"$dir/whole/model.safetensors") bytes"
}

lab2() {
    want=$(sed -n '2s/^0,\([^,]*\),.*/\1/p' "$reference/tiny.csv")
    for w in 1 2 3 4; do
        train $w eval --eval-only --eval-batches 1 $portable --memory-report "$dir/eval-$w.mem"
        loss=$(sed -n 's/^eval  step 0  loss \([^ ]*\) .*/\1/p' "$dir/eval-$w.log")
        echo "  W=$w  loss $loss; a rank holds $(bytes $w eval params_shard) bytes of parameters, and gathers at most $(bytes $w eval params_full)"
        [ "$loss" = "$want" ] && continue
        echo "FAIL run: lab 2: W=$w against tests/reference/tiny.csv: step 0, loss: got $loss, expected $want"
        bad=1
    done
    end "the loss of the first batch, forward only, is $want on 1, 2, 3 and 4 ranks and in tests/reference/tiny.csv: the same bits"
}

lab3() {
    all sgd tests/reference/tiny-sgd.csv "$reference/tiny-sgd.csv" $sgd --steps 20 --prefetch none $portable
    end '20 steps of SGD on 1, 2, 3 and 4 ranks have the losses of one device in tests/reference/tiny-sgd.csv: the same bits'
}

lab4() {
    all adamw 'your W=1' "$dir/adamw-1.csv" --steps 20 --prefetch none $portable
    train 4 moved --steps 20 --stop-after 10 --prefetch none $portable --save "$dir/save"
    cp "$dir/moved-4.csv" "$dir/moved-3.csv"
    train 3 moved --steps 20 --prefetch none $portable --resume "$dir/save"
    same 3 'your W=1, after 10 steps on 4 ranks and a checkpoint' "$dir/moved-3.csv" "$dir/adamw-1.csv"
    same 1 'tests/reference/tiny.csv' "$dir/adamw-1.csv" "$reference/tiny.csv" $band
    end "20 steps of AdamW on 1, 2, 3 and 4 ranks, and on 3 from a checkpoint of 4, have the bits of your W=1; tests/reference/tiny.csv is at most $most away, allowed is 8.8e-07"
}

# overlap MODE -- the smallest share, in percent, of a traced step's communication that overlapped with computation
overlap() {
    FSDP_LINK=1Gbit,50us "$FSDP_TOOLS/limit.sh" 60 "$BUILD/fsdp_run" --no-prefix -n 2 "$BUILD/fsdp_train" --n-layer 6 --n-head 4 --d-model 256 \
        --seq-len 256 --batch-size 4 --synthetic 100000 --steps 4 --prefetch "$1" --profile "$dir/profile" >"$dir/$1.log" 2>&1 || stopped 2 "$dir/$1.log"
    awk -F'|' '$2 ~ /step/ { for (i = 2; i < NF; i++) { gsub(/ /, "", $i); if ($i == "overlap") column = i } next }
        column && $column ~ /%/ { gsub(/[ %]/, "", $column); if (least == "" || $column + 0 < least) least = $column + 0 } END { print least }' "$dir/profile/profile.md"
}

lab5() {
    for w in 1 2 3 4; do
        train $w none --steps 20 --prefetch none $portable
        train $w both --steps 20 --prefetch both $portable
        first_last $w both
        same $w 'your run without prefetch' "$dir/both-$w.csv" "$dir/none-$w.csv"
    done
    none=$(overlap none)
    both=$(overlap both)
    echo "  over a link of 1 Gbit/s, W=2: $none% of communication hides behind computation without prefetch, $both% with it"
    if [ "$both" -le "$none" ]; then
        echo "FAIL run: lab 5: overlap with --prefetch both: got $both%, expected more than the $none% without prefetch"
        bad=1
    fi
    end '20 steps on 1, 2, 3 and 4 ranks with --prefetch none and both: the same bits; both hides more of communication'
}

lab6() {
    all npu 'your W=1' "$dir/npu-1.csv" --steps 20 --stop-after 3 --device npu-sim --prefetch both
    same 1 'tests/reference/tiny.csv' "$dir/npu-1.csv" "$reference/tiny.csv" $band
    end "3 steps on an NPU's stand-in, on 1, 2, 3 and 4 ranks, have the bits of your W=1; the CPU's tests/reference/tiny.csv is at most $most away, allowed is 8.8e-07"
}

"lab$lab"
