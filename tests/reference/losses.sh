#!/bin/sh
# losses.sh [--make] [BUILD] [NAME ...] -- check that the losses and weights of the coursework have the committed bits.
#
# With --ops portable and --reduction canonical, losses and weights do not depend on the machine, the compiler, the number of
# ranks or the sharding. So the losses of runs on RANKS (default "1 2 3 4") ranks are compared byte for byte with
# tests/reference/NAME.csv, and the SHA-256 of the exported model.safetensors with NAME's line in
# tests/reference/weights.sha256. The weights also contain the last step's update, which no loss shows. The exported file has
# only names, shapes and floats. Sharding: full on all RANKS; grad-op and none on the last of RANKS, for tiny on all.
# FSDP_DEVICE: train on that device. A device without operations that have the CPU's bits (npu), or OPS=fast, is compared with
# itself on one rank, with fast operations. SHARDINGS="full none": only these.
# --make writes the CSV and the SHA-256 again. This is needed only when the recipe changes, and then every learner's copy fails.
# --options NAME prints the options of a name.
# Names: tiny tiny-sgd llama-tiny llama31-tiny mnist-tiny small xl-2l (default: tiny small).
set -u
make=0 ask=0
[ "${1:-}" = --make ] && make=1 && shift
[ "${1:-}" = --options ] && ask=1 && set -- build "$2"
build=${1:-build}
[ $# -gt 0 ] && shift
names=${*:-tiny small}
ranks=${RANKS:-1 2 3 4}
here=$(dirname "$0")
# shellcheck disable=SC2034 # env.sh reads it
BUILD=$build
FSDP_TOOLS=$here/../tools && . "$FSDP_TOOLS/env.sh"
hashes=$here/weights.sha256
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
trap 'exit 130' INT TERM HUP
failed=0
ops=${OPS:-portable}
case ${FSDP_DEVICE:-} in npu*) ops=fast ;; esac

options() {
    case $1 in
    tiny) echo "--size tiny --seq-len 32 --steps 20" ;;
    tiny-sgd) # a step finds no norm: the file has nan
        echo "--size tiny --seq-len 32 --steps 20 --optimizer sgd --clip-grad 0 --no-grad-norm --lr 0.1 --lr-schedule constant --warmup-steps 0" ;;
    mnist-tiny) # 20 steps of the tutorial's recipe: Adadelta, and a rate that falls by steps
        echo "--model mnist --size tiny --steps 20 --optimizer adadelta --lr 1 --lr-schedule step --lr-step-size 8 --lr-gamma 0.7 --warmup-steps 0 --clip-grad 0" ;;
    llama-tiny) echo "--model llama --size tiny --seq-len 32 --steps 20" ;;
    llama31-tiny) # frequencies that Llama 3.1 keeps, blends and divides
        echo "--model llama --size llama3.1-8b --n-layer 1 --d-model 64 --n-head 4 --n-kv-head 2 --d-ff 128 --vocab-size 256 --n-positions 256 --seq-len 32 --steps 5" ;;
    small) echo "--size small --seq-len 64 --steps 10" ;;
    xl-2l) echo "--size xl-2l --seq-len 32 --steps 3" ;;
    *) echo "losses.sh: unknown name $1, expected tiny, tiny-sgd, llama-tiny, llama31-tiny, mnist-tiny, small or xl-2l" >&2; exit 2 ;;
    esac
}

# shardings NAME W -- the shardings to run; for larger models only the cheap ones
shardings() {
    if [ -n "${SHARDINGS:-}" ]; then
        echo "$SHARDINGS"
    elif [ "$1" = tiny ] || [ "$2" = "${ranks##* }" ]; then
        echo 'full grad-op none'
    else
        echo full
    fi
}

# train NAME W SHARDING -- write losses to $tmp/got.csv and the weights' hash to $tmp/got.sha256.
# Global batch 24 divides by 1, 2, 3, 4, 6 and 8.
train() {
    launcher=
    [ "$2" -gt 1 ] && launcher="$LAUNCHER -n $2"
    rm -rf "$tmp/export" "$tmp"/got.*
    # shellcheck disable=SC2046,SC2086 # lists of words
    $launcher "$build/fsdp_train" $(options "$1") --sharding "$3" --global-batch 24 --reduction canonical \
        --ops $ops --device "${FSDP_DEVICE:-cpu}" --synthetic 100000 --loss-csv "$tmp/raw.csv" --export "$tmp/export" >"$tmp/log" 2>&1 &&
        cut -d, -f1-4 "$tmp/raw.csv" >"$tmp/got.csv" &&
        sha256sum <"$tmp/export/model.safetensors" | sed "s/-$/$1/" >"$tmp/got.sha256" && return
    tail -5 "$tmp/log"
    return 1
}

# hash_of NAME FILE -- print NAME's hash in FILE; "none" if FILE has no line for NAME
hash_of() { awk -v name="$1" '$2 == name { hash = $1 } END { print hash ? hash : "none" }' "$2"; }

# verdict STATUS TEXT
verdict() {
    if [ "$1" -eq 0 ]; then
        echo "PASS reference $2"
    else
        echo "FAIL reference $2"
        failed=1
    fi
}

# check NAME W SHARDING
check() {
    run="$1 W=$2 $3"
    train "$1" "$2" "$3" || { verdict 1 "$run: the trainer failed"; return; }
    said=$("$build/fsdp_compare" "$here/$1.csv" "$tmp/got.csv")
    verdict $? "$run: $said"
    expected=$(hash_of "$1" "$hashes") got=$(hash_of "$1" "$tmp/got.sha256")
    if [ "$got" = "$expected" ] && [ "$got" != none ]; then
        verdict 0 "$run: the same final weights"
    else
        verdict 1 "$run: other final weights: SHA-256 $got, expected $expected"
    fi
}

# remake NAME -- write its files in the folder $here again
remake() {
    train "$1" 1 full || { failed=1; return; }
    cp "$tmp/got.csv" "$here/$1.csv"
    { [ ! -e "$hashes" ] || grep -v "  $1$" "$hashes"; cat "$tmp/got.sha256"; } | LC_ALL=C sort -k 2 >"$tmp/hashes"
    cp "$tmp/hashes" "$hashes"
    echo "wrote $here/$1.csv and its line in $hashes"
}

if [ $ops != portable ]; then
    here=$tmp/own hashes=$tmp/own/weights.sha256
    mkdir "$here"
fi
for name in $names; do
    options "$name" >/dev/null || exit
    [ $ask = 0 ] || { options "$name" && exit; }
    if [ $make = 1 ]; then
        remake "$name"
        continue
    fi
    case ${FSDP_DEVICE:-}:$name in
    npu*:mnist-*) echo "SKIP reference $name: an NPU has no convolution" && continue ;;
    esac
    [ $ops = portable ] || remake "$name"
    for w in $ranks; do
        for sharding in $(shardings "$name" "$w"); do
            check "$name" "$w" "$sharding"
        done
    done
done
exit $failed
