#!/bin/sh
# report.sh [BUILD] -- memory and traffic of every strategy, measured and planned.
#
# Trains a few steps of one model with the same global batch on one device, by DDP and by FSDP. Prints a table with the
# largest memory of a category on any rank and what rank 0 sent in one step. A cell is the measured figure; memory as issued
# follows in brackets if it differs. Exit status 0 iff all figures as issued equal the plan.
# Files: $BUILD/report/.
# shellcheck disable=SC2086 # lists of words
set -u
cd "$(dirname "$0")/../.." || exit 2
BUILD=${1:-build}
RANKS=4
OPTIONS='--size small --seq-len 64 --global-batch 8 --steps 3 --synthetic 100000 --reduction canonical --ops portable'
. tests/tools/env.sh
OUT=$BUILD/report
rm -rf "$OUT" && mkdir -p "$OUT" || exit 1

files=''
# measure NAME LAUNCHER... -- one column of the table
measure() {
    name=$1
    shift
    if ! "$@" $OPTIONS --memory-report "$OUT/$name.csv" >"$OUT/$name.log" 2>&1 </dev/null; then
        cat "$OUT/$name.log" >&2
        exit 1
    fi
    files="$files $OUT/$name.csv"
    [ -n "${title:-}" ] || title=$(head -1 "$OUT/$name.log" | sed 's/^[a-z]*: //; s/, 1 rank//')
}

t=$BUILD/fsdp_train ranks="$LAUNCHER -n $RANKS"
{
    measure single "$t" --parallel single
    measure ddp $ranks "$t" --parallel ddp
    measure none $ranks "$t" --sharding none
    measure grad-op $ranks "$t" --sharding grad-op
    measure full $ranks "$t" --sharding full
}

echo "$title; $RANKS ranks"
echo "options: $OPTIONS"
awk -F, '
    FNR == 1 { col++; sub(/.*\//, "", FILENAME); sub(/\.csv$/, "", FILENAME); head[col] = FILENAME; next }
    !(($1, $2) in seen) { seen[$1, $2] = 1; order[++n] = $1 SUBSEP $2 }
    { got[col, $1, $2] = $3; issued[col, $1, $2] = $4; planned[col, $1, $2] = $5 }
    END {
        printf "\n%-20s", "bytes"
        for (c = 1; c <= col; c++) printf " %12s", head[c]
        print ""
        for (i = 1; i <= n; i++) {
            split(order[i], k, SUBSEP)
            sum = 0
            for (c = 1; c <= col; c++) sum += got[c, k[1], k[2]]
            if (sum == 0 || k[2] == "other") continue
            what = k[1] == "memory" ? "held " : k[1] == "bytes" ? "sent " : "calls "
            printf "%-20s", what (k[2] == "total" ? "at one moment" : k[2])
            for (c = 1; c <= col; c++) {
                g = got[c, k[1], k[2]]; as = issued[c, k[1], k[2]]
                if (as != planned[c, k[1], k[2]]) bad++
                printf " %12s", g == as ? g : g " (" as ")"
                if (g != as) apart++
            }
            print ""
        }
        if (apart) print "\n(n): as issued. What a stream has yet to free counts in the first figure."
        print (bad ? "\n" bad " figures as issued are NOT those planned." : "\nAll figures as issued are those planned, to the byte.")
        exit bad > 0
    }' $files
