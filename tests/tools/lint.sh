#!/bin/sh
# lint.sh -- rules that no compiler checks: layout, which folder may include which, sizes, source tags.
#
# Prints one PASS, FAIL or SKIP line per rule, and the violations below it; exit status 0 iff all rules hold.
set -u
cd "$(dirname "$0")/../.." || exit 2
. tests/tools/rule.sh

# The three floors: includes point downwards.
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

rule short-headers 'in labs 1 to 5 only set-up files include device.h and comm.h; all others take device_calls.h and comm_calls.h' \
    "$(grep -nE '#include "common/(device|comm)/' lab[1-5]_*/*.[ch] |
        grep -vE '_calls\.h"|comm/(mesh|comm_pieces|comm_sums)\.h"|^lab[1-5]_[a-z]*/([a-z]*_setup|host_state|ckpt_io|update)\.c:')"

# What the tasks of a lab do not teach has its place in given files, which call the tasks.
RARE='companion|way|parts|n_parts|counts|n_updated|near|frozen|forward_only|near_[a-z]*|row_ranks|dim0_[a-z_]*|rows|keeps_[a-z_]*|in_backward|defers|no_sync[a-z_]*|replicas_[a-z]*|shard_is_on_host|offload[a-z_]*|grads_(fetch|park)|grad_sum|second[a-z_]*|given|place|chunk[a-z_]*'
rule core-files 'a lab'"'"'s core file names no feature that its tasks do not teach' "$(
    for file in lab1_flatparam/flat_param.c lab1_flatparam/wrap.c lab2_forward/forward.c lab2_forward/cast.c lab3_backward/backward.c \
        lab4_optimizer/optimizer.c lab4_optimizer/ckpt_pieces.c lab5_prefetch/prefetch.c lab5_prefetch/limiter.c; do
        awk '{ gsub(/"[^"]*"/, ""); gsub(/\/\*.*\*\//, ""); if (/^ ?\/?\*/) next; print FILENAME ":" FNR ": " $0 }' "$file" | grep -wE "$RARE"
    done)"

rule contract-rows 'a part of a contract ("errors  ...") begins a line of its own; clang-format joins it to a paragraph whose lines are too long' \
    "$(grep -rnE '^ ?\* [^ ].*[^ ] [*a-z_]+ {2,}[A-Za-z]' common lab?_* trainer tests docs --include='*.[ch]')"

rule loop-size 'the loop that calls the hooks is read at a glance' \
    "$(awk 'END { if (NR > 120) print FILENAME ": " NR " lines, at most 120" }' common/model/loop.c)"

# below FOLDER... -- a pattern for includes of these folders of common/
below() { echo "#include +\"common/($(echo "$*" | tr ' ' '|'))/"; }
rule sum 'common/sum includes neither ops nor comm' "$(grep -rnE "$(below ops comm)" common/sum --include=*.c --include=*.h)"
# includes PATTERN FOLDERS -- lines that include a match of PATTERN, except in these folders and in the stand-ins
includes() { grep -rnE "#include +$1" common lab*_* trainer tests --include=*.[ch] --include=*.cu --include=*.cpp | grep -vE "^(($2|tests/sim)/|tests/grade/(lab6|npu_work_lib)\.c:)"; }
rule plug-in 'only a plug-in and its grader include its own headers, common/accel and its maker'"'"'s' "$(
    includes '("common/cuda/|[<"](cuda|cublas|nccl)[A-Za-z_]*\.h)' 'common/cuda|tests/gpu'
    includes '["<](acl|aclnn|aclnnop|hccl)/' lab6_npu
    includes '"common/accel/' 'common/(accel|cuda)|lab6_npu'
)"
rule launches 'a kernel is launched by LAUNCH alone, which lists it for the device to load' \
    "$(grep -rnE '<<<|sim_launch\(' common tests/sim/cuda/*.cc --include=*.cu --include=*.cc --include=*.h | grep -v '^common/cuda/launch.h:')"
rule instruments 'common/device includes none of its instruments' "$(grep -nE "$(below device/instruments)" common/device/*.[ch])"
rule comm 'common/comm includes no ops' "$(grep -rnE "$(below ops)" common/comm --include=*.c --include=*.h)"
rule ops 'common/ops includes no comm' "$(grep -rnE "$(below comm)" common/ops --include=*.c --include=*.h)"

# The first C block of these READMEs quotes the loop.
rule quotes 'the loop that labs 2, 3 and 5 quote is the one that runs' "$(
    for text in lab2_forward lab3_backward lab5_prefetch; do
        awk -v text="$text/README.md" '
            FILENAME ~ /loop.c$/ { there[$0] = 1; next }
            /^```/ { if (inside) exit; inside = /^```c$/; next }
            inside { n++; if (!($0 in there)) print text ": " $0 }
            END { if (n < 5) print text ": no quotation of common/model/loop.c" }' common/model/loop.c "$text/README.md"
    done
)"

# Links, and names of files in backquotes, are relative to common/.
rule walk 'the way of one parameter in common/README.md goes through fewer than 31 files, and all that it names are there' "$(
    grep -oE '\]\([^)#]+|`[a-z_]+/[a-z_/]+\.[ch]`' common/README.md | sed 's/^](//; s/`//g' | sort -u |
        while read -r path; do [ -e "common/$path" ] || echo "common/README.md: no file $path"; done
    awk '/^\| \[/ { n++ } END { if (n < 1 || n >= 31) print FILENAME ": " n + 0 " files" }' common/README.md
)"

# headings PAGE -- the anchors of its headings, as GitHub makes them
headings() { sed -n '/^```/,/^```/d; s/^##* //p' "$1" | tr '[:upper:]' '[:lower:]' | sed 's/[^a-z0-9 _-]//g; s/ /-/g'; }
# Links of the handout's README are relative to the handout, so they are not checked here.
rule links 'a relative link of a page names a file that is there, and an anchor a heading of that page' "$(
    find ./*.md docs common lab*_* trainer tests -name '*.md' ! -path tests/grade/handout/README.md | while read -r page; do
        grep -oE '\]\([^) ]+\)' "$page" | sed 's/^](//; s/)$//' | grep -v '^https*:' | sort -u | while read -r link; do
            file=${link%%#*}
            file=${file:+$(dirname "$page")/$file}
            [ -e "${file:-$page}" ] || { echo "$page: $link: no such file"; continue; }
            case $link in *#*) headings "${file:-$page}" | grep -qxF -- "${link#*#}" || echo "$page: $link: no such heading" ;; esac
        done
    done
)"

rule lab-size 'a lab file has at most 400 lines' \
    "$(find lab[1-6]_* -name '*.c' -o -name '*.h' | xargs wc -l | awk '$2 != "total" && $1 > 400 { print $2 ": " $1 " lines" }')"

# functions KINDS FORMAT -- the functions of all C files, from universal-ctags
functions() { find common lab*_* trainer tests docs -name '*.[ch]' -o -name '*.cu' | xargs ctags -x --langmap=C++:+.cu --c-kinds="$1" --c++-kinds="$1" --_xformat="$2" 2>/dev/null; }

# The contracts of the functions in this file are in pmath.h.
elsewhere='pmath_impl.h'

if command -v ctags >/dev/null 2>&1 && ctags --version 2>/dev/null | grep -q Universal; then
    rule function-size 'a function has at most 50 lines, a kernel in common/ops or a .cu file 80' "$(
        functions f '%{input}:%{line} %{name} %{end}' |
            awk '{ split($1, at, ":"); n = $3 - at[2] + 1; if (n > (at[1] ~ /^common\/ops\/|\.cu$/ ? 80 : 50)) print $1 " " $2 ": " n " lines" }'
    )"

    rule parameters 'a function has at most 6 parameters, a collective (comm_*, hccl_call_*) 8; else give it a struct' "$(
        functions fp '%{input}:%{line} %{name} %{signature}' | awk '{
            name = $2; at = $1
            sub(/^[^(]*\(/, ""); sub(/\)$/, "")
            while (gsub(/\([^()]*\)/, "")) {} # commas inside function pointers
            n = gsub(/,/, "") + 1
            if (at !~ /^tests\/sim\// && n > (name ~ /^(comm|hccl_call)_/ ? 8 : 6)) print at " " name ": " n " parameters"
        }'
    )"

    # The comment is above the function or above its group; a group ends at an empty line.
    rule contracts 'a function of a header stands under a comment "/* NAME -- ...", NAME being its own or one of its group' "$(
        functions fp '%{input} %{line} %{name}' | awk -v skip=" $elsewhere " '
            function end_group(i) {
                for (i = 1; i <= n && !found; i++) print said[i]
                n = found = 0
                head = ""
            }
            FILENAME == "-" {
                base = $1
                sub(/.*\//, "", base)
                if (!index(skip, " " base " ") && $3 ~ /^[a-z]/) name[$1, $2] = $3
                next
            }
            FNR == 1 || /^$/ || /^\/\*/ { end_group() }
            /^\/\*.* -- / { head = $2; sub(/[,(].*/, "", head); gsub(/\*/, ".*", head) }
            (FILENAME, FNR) in name {
                said[++n] = FILENAME ":" FNR " " name[FILENAME, FNR]
                if (name[FILENAME, FNR] ~ "^" head "$") found = 1
            }
            END { end_group() }' - $(find common lab*_* trainer -name '*.h')
    )"
else
    for name in function-size parameters contracts; do
        echo "SKIP $name: universal-ctags is not installed"
    done
fi

cxx() { g++ -x c++ -std=c++17 -Wall -Wextra -Werror -D_GNU_SOURCE -I. "$@" -; }
if command -v g++ >/dev/null 2>&1; then
    headers=$(printf '#include "common/%s.h"\n' base/status device/device ops/ops comm/comm)
    rule cxx 'the headers that kernels include are C++17 too, and their functions C to it' "$(
        echo "$headers" | cxx -fsyntax-only 2>&1
        for header in $(echo "$headers" | cxx -MM 2>/dev/null | grep -o 'common/[a-z_/]*\.h'); do
            grep -qE '^[a-z].*\(.*\);$' "$header" && ! grep -q '^EXTERN_C_BEGIN$' "$header" && echo "$header: no EXTERN_C_BEGIN"
        done
    )"
else
    echo 'SKIP cxx: g++ is not installed'
fi

# FILE NAME and the reason why the process, or each thread, has this variable.
globals='
status.c     record         the last error of a thread, as errno is
cpu_schedule.c of_thread     the scheduler of the devices that a thread has opened
recycle.c    shared         records that one thread is done with serve all
host_share.c opened         the file of shared memory, mapped by the peers under one descriptor;
host_share.c share_fd         opened once
host_share.c end_bytes        its length
host_share.c end_lock         guards that
guard.c      guarded_by     how memory is guarded in this process;
guard.c      key              and one key serves all its devices;
guard.c      mappings         what is guarded,
guard.c      opened           and open to threads with the right,
guard.c      n_rights         how many there are;
guard.c      lock             guards these three
guard.c      has_right        whether this thread is one of them, as the register of the keys is
guard.c      fault            for the handler of a signal, of which the process has one
guard.c      signal_stack     frees the stack of a thread for faults,
guard.c      signal_stack_once    made once
guard.c      has_stack        whether this thread has it
separate.c   fault          what the message of a fault names
gemm_dnnl.c  engine         the engine of oneDNN: the CPU;
gemm_dnnl.c  once             opened once
gemm_dnnl.c  engine_status    whether it could be
gemm_dnnl.c  has_bf16         what it can do
gemm_dnnl.c  has_fp32         what it can do
gemm_dnnl.c  has_amx          what it can do
gemm_fp32.c  products         of the instruction set that was chosen
gemm_fp32.c  width            of its blocks
mpi_operation.c mpi_shared     MPI is initialised and driven once in a process
hang.c       file_lock      one file of last calls is written at a time
shm_watch.c  shm_self       what this process knows of the job
shm_map.c    maps           mappings of the peers, shared by all groups;
shm_map.c    n_maps           how many
shm_map.c    maps_lock        guards both
hier.c       n_opened       the last group closes MPI
backends.c   opened         plug-ins, which are opened once and stay
native.c     words          why a transport cannot be had, read as soon as the call returns
host_task.c  found          a call of the driver, looked for once
npu.c        is_initialised ACL is initialised once in a process
npu.c        is_ours          by whom
npu.c        n_open           the last device ends it'
# Objects of plug-ins are checked as their stand-ins are built. For kernels the linker makes lists, which need no reason.
objects=$(for source in $(find common lab*_* trainer -name '*.c' -o -name '*.cpp'); do
    for folder in '' /sim /npu-sim; do ls "${BUILD:-build}$folder/${source%.*}.o" 2>/dev/null; done
done)
if [ -n "$objects" ] && command -v nm >/dev/null 2>&1; then
    rule globals 'a variable that outlives its function is const, or stands with its reason in the list of lint.sh' "$(
        echo "$objects" | xargs nm -A -f sysv | awk -F '[|]' '
            { gsub(/ /, "") }
            $3 ~ /^[bBcCdD]$/ && $7 !~ /\.ro/ { # zeroed, common or with a value; .data.rel.ro is const
                split($1, at, ":")
                sub(/.*\//, "", at[1])
                sub(/o$/, "c", at[1])
                sub(/\.[0-9]+$/, "", at[2]) # a static variable of a function: gcc writes name.1, clang function.name
                sub(/^[^.]+\./, "", at[2])
                if (at[2] !~ /^\./) print at[1], at[2] # locks of OpenMP begin with a dot
            }' | grep -vxF "$(echo "$globals" | awk '{ print $1, $2 }')"
    )"
else
    echo 'SKIP globals: nothing is built, or there is no nm'
fi

# A called name is followed by "(", follows CALL( in a macro, or is a member of npu.c's table. Our own names have a "_" after aclnn. A handed-out tree, which
# has no mutants, may lack calls that are not written yet.
rule calls 'lab6_npu/calls.txt lists the calls of CANN that lab 6 makes' "$(
    grep -ohE 'CALL\(aclnn[A-Za-z0-9]+|\b(acl|aclrt|aclnn|Hccl)[A-Z][A-Za-z0-9]*\(|= aclrt[A-Za-z0-9]+,' lab6_npu/*.c lab6_npu/*.cpp |
        sed 's/CALL(//; s/^= //; s/[(,]$//' | sort -u | awk -v whole="$([ -d tests/mutants ] && echo 1)" '
        FILENAME == "-" { made[$1] = 1; next }
        !/^#/ { listed[$1] = 1 }
        END {
            for (call in made) if (!(call in listed)) print "not listed: " call
            for (call in listed) if (whole && !(call in made)) print "not made: " call
        }' - lab6_npu/calls.txt
)"

# A function that writes a void * into a variable of another pointer type breaks strict aliasing. A cast after "*" is allowed: it
# reads what a stream has copied for a task.
handle='(cuda|nccl|cublas)[A-Za-z]*_t'
rule out-pointers 'an out-parameter gets a variable of its own type: a void * local, not (void **)&typed' \
    "$(grep -rnE "\\*\\(void \\*\\*\\) ?&|(^|[^*])\\(([A-Za-z_]+ \\*\\*|$handle \\*)\\) ?[&a-z]" \
        common lab*_* trainer tests --include=*.[ch] --include=*.cu --include=*.cpp --include=*.cc)"

# The table of environment variables, the documentation and the readers.
rule environment 'environment.c, docs/options.md and the code that reads have the same environment variables' "$(
    rows=$(sed -n '/^static const option_spec VARIABLES/,/{0}};/p' common/base/environment.c | grep -oE '"(FSDP|OMP)_[A-Z_]+"' | tr -d '"' | sort)
    docs=$(sed -n '/^## Environment variables/,/^## Troubleshooting/p' docs/options.md | sed -n 's/^| *\(`[^|]*\)|.*/\1/p' |
        grep -oE '(FSDP|OMP)_[A-Z_]+' | sort)
    [ -n "$rows" ] && [ "$rows" = "$docs" ] || printf '%s\n' "$rows" "$docs" | sort | uniq -u | sed 's/$/: in environment.c or in docs\/options.md, not in both/'
    grep -rnE 'getenv\("(FSDP_|OMP_NUM)' common lab*_* trainer --include=*.[ch]
)"

rule checks 'each script of tests/cli is a row of checks.txt' "$(
    for script in $(ls tests/cli/*.sh | grep -vE "/lib.sh|_lib.sh"); do
        grep -qE "^cli/[a-z0-9_]+ .* $script( |\$)" tests/tools/checks.txt || echo "no row: $script"
    done
)"

rule tasks 'tasks.txt, the graders, the SOLUTION blocks and the READMEs name the same tasks, hours and points' "$(
    cd tests/grade && ids=$(awk '!/^#/ && NF { print $1 }' tasks.txt)
    for lab in 1 2 3 4 5 6; do
        { echo "$ids" | grep "^$lab\."; grep -oE '\{"[1-6]\.[0-9a-z]+",' lab$lab.c | tr -d '{",'; } | sort | uniq -u | sed 's/$/: in tasks.txt or in lab'$lab.c', not in both/'
        points=$(awk -v l=$lab '!/^#/ && int($1) == l { n += $2 } END { print n }' tasks.txt)
        hours=$(sed -n 's/.*About \([0-9]*\) hours.*/\1/p' ../../lab${lab}_*/README.md | head -n 1)
        grep -q "^| \[lab${lab}_.*| $hours | $points |" ../../README.md && grep -q "^| .lab${lab}_.*| $hours | $points |" handout/README.md && grep -qE "(^| )$points points" ../../lab${lab}_*/README.md ||
            echo "lab $lab takes $hours hours and has $points points, which README.md, the handout's README or its own does not say"
        for id in $(echo "$ids" | grep "^$lab\."); do
            grep -qE "(^|[^0-9.])$(echo "$id" | sed 's/[.]/[.]/')([^0-9a-z]|\$)" ../../lab${lab}_*/README.md || echo "lab $lab: its README has no $id"
        done
    done
    grep -ohE 'SOLUTION BEGIN [^ ]+' ../../lab[1-6]_*/*.c ../../lab[1-6]_*/*.cpp | awk '{ print $3 }' | sort -u | grep -vxF "$ids" | sed 's/$/: a SOLUTION block of no task/'
)"

marker='TO''DO|FIX''ME|XX''X|HA''CK'
rule device-reads 'the task tests read and write device memory through grade_lib.c' \
    "$(grep -nE 'device_(down|up)load\(' tests/grade/*.c | grep -v '^tests/grade/grade_lib.c:')"
rule markers 'no left-over markers in comments' \
    "$(grep -rnE "(//|/\*|^ \*|#).*\b($marker)\b *[:(]" Makefile common lab*_* trainer tests docs --include=*.c --include=*.h --include=*.sh --include=Makefile)"

# A source tag is [Word §n], [Word alg. n], [Word RFC], [MPI-4 §n], [Name year], [Name et al. year] or [A & B year].
tags=$(grep -rhoE '\[(ZeRO|FSDP2?|AdamW|DDP|MPI-?[0-9.]*|GPT-2|LayerNorm|Philox|MiCS|HSDP)( [^]]*)?\]|\[[A-Z][a-z]+( et al\.,?| & [A-Z][a-z]+)?,? ([^]]* )?[0-9]{4}[^]]*\]' \
    common lab*_* trainer tests --include=*.c --include=*.h --include=*.cu | sort -u)
hits=$(echo "$tags" | while read -r tag; do
    grep -qF "$tag" WRITEUP.md || echo "$tag"
done)
rule tags 'WRITEUP.md lists every source tag' "$hits"

# The first column of a row has tags, the last has paths in backquotes; [CANN ...] matches every tag that begins with [CANN.
rule tag-files 'in the list of sources in WRITEUP.md each path holds a tag of its row' "$(
    rows=$(sed -n '/^## .* Sources$/,/^## /s/^| \[/[/p' WRITEUP.md)
    [ -n "$rows" ] || echo 'WRITEUP.md: no list of sources'
    echo "$rows" | while IFS='|' read -r tags _ paths; do
        wanted=$(echo "$tags" | grep -oE '\[[^]]+\]' | sed 's/ \.\.\.\]$//')
        for path in $(echo "$paths" | grep -oE '`[^`]+`' | tr -d '`'); do
            grep -rqF "$wanted" "$path" 2>/dev/null || echo "$path: no $tags"
        done
    done
)"

# Leftovers of a reflow.
rule comments 'a comment ends on its last line of text, one blank after it' \
    "$(grep -rnE '^ *\*/$|^[^"]*[^ *-] {3,}\*/$' common lab*_* trainer tests docs --include=*.c --include=*.h --include=*.cu)"

# A handed-out tree has no mutants.
if [ -d tests/mutants ]; then
    tests/mutants/run.sh --fit || status=1
    tests/mutants/generated.sh --fit || status=1
    # shellcheck disable=SC2046 # the tables that the rows name
    rule mutant-rows 'make test-full runs each table of mutants once' "$({
        tests/mutants/run.sh -l
        tests/mutants/run.sh -l $(awk '/^mutants-/ { for (i = 7; i <= NF; i++) print $i }' tests/tools/checks.txt | tr -d "'")
    } | sort | uniq -c | awk '$1 != 2')"
fi

tests/tools/format.sh --check
[ $? -eq 1 ] && status=1
exit $status
