#!/bin/sh
# lint.sh -- rules that no compiler knows: layout, which folder may include which, sizes, source tags.
#
# Prints one PASS, FAIL or SKIP line per rule, and where it is broken; exit status 0 iff all hold.
set -u
cd "$(dirname "$0")/../.." || exit 2
status=0

# rule NAME TEXT HITS -- broken when HITS is not empty
rule() {
    if [ -z "$3" ]; then
        echo "PASS $1: $2"
    else
        echo "FAIL $1: $2"
        echo "$3" | head -10 | sed 's/^/     /'
        status=1
    fi
}

# The three floors: arrows point down.
includes='#include +"([^"]*/)?lab'
rule common 'common/ includes no lab and nothing of trainer/' \
    "$(grep -rnE "$includes[1-6]_|#include +\"trainer/" common --include=*.c --include=*.h)"
rule common-words 'common/ names no option or type of sharding' \
    "$(grep -rnE '"(sharding|wrap|fsdp-size|layout|no-sync)"|sharding_strategy|wrap_policy' common --include=*.c --include=*.h)"

hits=$(grep -rnE '#include +"trainer/' lab[1-6]_* --include=*.c --include=*.h)
for n in 1 2 3 4 5; do
    above=$(seq -s '|' $((n + 1)) 6)
    hits="$hits$(grep -rnE "$includes($above)_" lab${n}_* --include=*.c --include=*.h)"
done
rule labs 'a lab includes only common/ and the labs below it' "$hits"

rule loop-size 'the loop that calls the hooks is read at a glance' \
    "$(awk 'END { if (NR > 120) print FILENAME ": " NR " lines, at most 120" }' common/model/loop.c)"

# below FOLDER... -- a pattern of includes of these folders of common/
below() { echo "#include +\"common/($(echo "$*" | tr ' ' '|'))/"; }
rule sum 'common/sum includes neither ops nor comm' "$(grep -rnE "$(below ops comm)" common/sum --include=*.c --include=*.h)"
rule comm 'common/comm includes no ops' "$(grep -rnE "$(below ops)" common/comm --include=*.c --include=*.h)"
rule ops 'common/ops includes no comm' "$(grep -rnE "$(below comm)" common/ops --include=*.c --include=*.h)"

# The first C block of these READMEs is that loop.
rule quotes 'the loop that labs 2, 3 and 5 quote is the one that runs' "$(
    for text in lab2_forward lab3_backward lab5_prefetch; do
        awk -v text="$text/README.md" '
            FILENAME ~ /loop.c$/ { there[$0] = 1; next }
            /^```/ { if (inside) exit; inside = /^```c$/; next }
            inside { n++; if (!($0 in there)) print text ": " $0 }
            END { if (n < 5) print text ": no quotation of common/model/loop.c" }' common/model/loop.c "$text/README.md"
    done
)"

rule lab-size 'a lab file has at most 400 lines' \
    "$(find lab[1-6]_* -name '*.c' -o -name '*.h' | xargs wc -l | awk '$2 != "total" && $1 > 400 { print $2 ": " $1 " lines" }')"

if command -v ctags >/dev/null 2>&1 && ctags --version 2>/dev/null | grep -q Universal; then
    rule function-size 'a function has at most 60 lines, a kernel in common/ops 80' "$(
        find common lab*_* trainer tests -name '*.c' | xargs ctags -x --c-kinds=f --_xformat='%{input}:%{line} %{name} %{end}' 2>/dev/null |
            awk '{ split($1, at, ":"); n = $3 - at[2] + 1; if (n > (at[1] ~ /^common\/ops\// ? 80 : 60)) print $1 " " $2 ": " n " lines" }'
    )"
else
    echo 'SKIP function-size: universal-ctags is not installed'
fi

marker='TO''DO|FIX''ME|XX''X|HA''CK'
rule markers 'no left-over markers in comments' \
    "$(grep -rnE "(//|/\*|^ \*|#).*\b($marker)\b *[:(]" Makefile common lab*_* trainer tests --include=*.c --include=*.h --include=*.sh --include=Makefile)"

# A source tag is [Word §n], [Word alg. n], [Word RFC], [MPI-4 §n], [Name year], [Name et al. year] or [A & B year].
tags=$(grep -rhoE '\[(ZeRO|FSDP2?|AdamW|DDP|MPI-?[0-9.]*|GPT-2|LayerNorm|Philox|MiCS|HSDP)( [^]]*)?\]|\[[A-Z][a-z]+( et al\.,?| & [A-Z][a-z]+)?,? ([^]]* )?[0-9]{4}[^]]*\]' \
    common lab*_* trainer tests --include=*.c --include=*.h | sort -u)
hits=$(echo "$tags" | while read -r tag; do
    grep -qF "$tag" WRITEUP.md || echo "$tag"
done)
rule tags 'WRITEUP.md lists every source tag' "$hits"

# A handed-out tree has no mutants.
[ ! -d tests/mutants ] || tests/mutants/run.sh --fit || status=1

tests/tools/format.sh --check
[ $? -eq 1 ] && status=1
exit $status
