# lib.sh -- sourced by the benchmark scripts: paths, a description of the machine, medians, tables.
#
# Sets BUILD, OUT (BUILD/bench), CORES, LAUNCHER, FULL (1 with BENCH_FULL=1, else empty), PYTHON (an interpreter
# with torch, or empty). Needs: bash, awk.
# shellcheck shell=bash disable=SC2034 # the scripts that source this use the variables
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 2
BUILD=${1:-build}
OUT=$BUILD/bench
CORES=$(nproc)
FULL=${BENCH_FULL:-}
[ "$FULL" = 0 ] && FULL=''
. tests/tools/env.sh
mkdir -p "$OUT" || exit 1

say() { printf '%s %s\n' "$(date +%T)" "$*"; }
title() { printf '\n== %s\n' "$*"; }
fail() { # fail MESSAGE HINT
    echo "bench: $1" >&2
    echo "HINT: $2" >&2
    exit 1
}

# find_python -- set PYTHON to the caller's FSDP_PYTHON, else to the venv of make bench-peers; empty if neither has torch.
find_python() {
    PYTHON=''
    local candidate
    for candidate in "${FSDP_PYTHON:-}" "$BUILD/peers/bin/python"; do
        [ -n "$candidate" ] && "$candidate" -c 'import torch, numpy' 2>/dev/null && PYTHON=$candidate && return
    done
}

# quartiles -- numbers on stdin, one per line -> "median q1 q3 n", or "- - - 0" without numbers. Interpolates linearly.
quartiles() {
    sort -g | awk '
        function at(p,    i, f) { i = 1 + (NR - 1) * p; f = int(i); return x[f] + (i - f) * (x[f < NR ? f + 1 : f] - x[f]) }
        { x[NR] = $1 }
        END { if (NR) printf "%.6g %.6g %.6g %d\n", at(.5), at(.25), at(.75), NR; else print "- - - 0" }'
}

# table FILE.csv -- print it as a Markdown table, with numbers aligned right.
table() {
    awk -F, '
        { line = "|"; for (i = 1; i <= NF; i++) line = line " " $i " |"; row[NR] = line; text[NR] = $0 }
        END {
            print row[1]
            n = split(text[2], cell, ",")
            rule = "|"
            for (i = 1; i <= n; i++) rule = rule (i > 1 && cell[i] ~ /^-?[0-9.]*$/ ? "---:|" : "---|")
            print rule
            for (i = 2; i <= NR; i++) print row[i]
        }' "$1"
}

# field FILE KEY -- the value of a "key,value" file
field() { awk -F, -v key="$2" '$1 == key { print $2 }' "$1"; }

# plot NAME -- gnuplot commands on stdin -> OUT/NAME.png; no plot without gnuplot.
plot() {
    command -v gnuplot >/dev/null || return 0
    { echo "set terminal pngcairo size 1000,560 font ',11'; set output '$OUT/$1.png'; set datafile separator ','
            set grid back lc rgb '#dddddd'; set border 3; set tics nomirror; set key outside right"; cat; } |
        gnuplot 2>"$OUT/gnuplot.log" && say "plot: $OUT/$1.png" && return
    say "no plot $1: see $OUT/gnuplot.log"
    rm -f "$OUT/$1.png"
}

cache() { lscpu -C=NAME,ALL-SIZE 2>/dev/null | awk 'NR > 1 { printf "%s%s %s", (NR > 2 ? ", " : ""), $1, $2 }'; }
package() { dpkg-query -W -f '${Version}' "$1" 2>/dev/null || echo '?'; }

# machine -- print Markdown lines that describe the machine and the software
machine() {
    echo "- date: $(date -u '+%F %H:%M UTC'); commit $(git rev-parse --short HEAD 2>/dev/null || echo '?')$(
        git diff --quiet HEAD 2>/dev/null || echo ' with changes')"
    echo "- CPU: $(lscpu | sed -n 's/^Model name: *//p' | head -1), $CORES cores for this process; caches of all: $(cache)"
    echo "- vector units: $(for f in avx2 fma avx512f avx512_bf16 amx_bf16 asimd bf16; do
        grep -m1 -qwE "(flags|Features).*\b$f\b" /proc/cpuinfo && printf '%s ' "$f"
    done)"
    env | sort | grep -E "^(MARCH|ONEDNN_MAX_CPU_ISA|ATEN_CPU_CAPABILITY|MKL_ENABLE_INSTRUCTIONS)=" | xargs | sed -n "s/./- held to fewer instructions by &/p"
    echo "- memory: $(awk '/^MemTotal/ { printf "%.1f GiB", $2 / 1048576 }' /proc/meminfo), transparent huge pages: $(
        cat /sys/kernel/mm/transparent_hugepage/enabled 2>/dev/null || echo '?')"
    echo "- kernel: $(uname -sr); hypervisor: $(lscpu | sed -n 's/^Hypervisor vendor: *//p' | grep . || echo none)"
    echo "- compiler: $(sed -n 's@^\(.*\) -D_GNU_SOURCE.*@\1@p' "$BUILD/flags" | xargs -I{} sh -c '{} --version | head -1'); flags: $(
        grep -o -- '-O[^/]*' "$BUILD/flags" | sed 's/ -D_GNU_SOURCE.*//')"
    echo "- libraries: MPICH $(package libmpich-dev), oneDNN $(package libdnnl-dev), glibc $(package libc6)"
    echo "- PyTorch: $([ -n "$PYTHON" ] && "$PYTHON" -c 'import torch; print(torch.__version__)' || echo '- (make bench-peers)')"
    echo "- load when it began: $(cut -d' ' -f1-3 /proc/loadavg) (other work on the machine shows as wide quartiles)"
}

# cpu_ticks -- "busy stolen" of all cores since boot, in clock ticks
cpu_ticks() { awk '/^cpu / { print $2 + $3 + $4 + $7 + $8, $9 }' /proc/stat; }

# others CPU_TICKS_BEFORE SECONDS TIMES -- print the share of the cores that other work used since then, and the share that the
# hypervisor stole. TIMES is the output of bash's `times` in the main shell; its children's time is subtracted.
others() {
    local before=$1 seconds=$2 own
    own=$(tail -1 "$3" | tr 'ms' '  ' | awk -v hz="$(getconf CLK_TCK)" '{ print ($1 * 60 + $2 + $3 * 60 + $4) * hz }')
    echo "$before $(cpu_ticks) $own" | awk -v all="$(($(nproc --all) * $(getconf CLK_TCK) * seconds))" '{
        rest = $3 - $1 - $5
        printf "%.0f %% of the cores were busy with other work, %.0f %% taken by the hypervisor", 100 * (rest > 0 ? rest : 0) / all, 100 * ($4 - $2) / all }'
}

# bench_page LINE -- write OUT/bench.md from the parts that are there. LINE tells how far the run got.
bench_page() {
    local part picture
    [ -f "$OUT/machine.md" ] || return 0
    {
        cat "$OUT/machine.md" "$OUT/roof.md"
        echo "- $1"
        for part in train collectives kernels scaling overlap products; do
            [ -f "$OUT/$part.md" ] || continue
            echo
            cat "$OUT/$part.md"
            for picture in "$OUT/$part"*.png; do [ -f "$picture" ] && printf '\n![%s](%s)\n' "$part" "${picture##*/}"; done
        done
    } >"$OUT/bench.md"
}
