#!/bin/sh
# cann_headers.sh -- lab 6 against the headers of CANN's own open repositories, without CANN: do the sources compile, and
# do the constants of tests/sim/ascend/include have the makers' values?
#
#   tests/interop/cann_headers.sh FOLDER [BUILD]
#
# FOLDER holds clones of runtime, opbase, ops-math, ops-nn and ops-transformer (gitcode.com/cann or github.com/hicann) and of
# pytorch (github.com/Ascend, for HCCL's header). Nothing is linked with CANN's libraries, and nothing runs. Prints PASS
# and FAIL lines; SKIP and exit status 77 where a clone is missing.
set -u
cd "$(dirname "$0")/../.." || exit 2
from=${1:?cann_headers.sh: which folder holds the clones?} build=${2:-${BUILD:-build}}/cann failed=0
for clone in runtime opbase ops-math ops-nn ops-transformer pytorch; do
    git -C "$from/$clone" rev-parse -q --verify HEAD >/dev/null 2>&1 || { echo "SKIP cann_headers: no clone of $clone in $from" && exit 77; }
done
home=$(cd "$(mkdir -p "$build" && echo "$build")" && pwd)
rm -rf "$home/include" && mkdir -p "$home/include/aclnnop" "$home/include/hccl" "$home/include/aclnn"

# one CLONE PATTERN TO -- the first file of the clone whose path matches; false where there is none
one() {
    path=$(git -C "$from/$1" ls-tree -r --name-only HEAD | grep -E "$2" | grep -vE 'tests?/|example' | head -1)
    [ -n "$path" ] && git -C "$from/$1" show "HEAD:$path" >"$home/include/$3"
}
git -C "$from/runtime" archive HEAD include/external/acl | tar x -C "$home" --strip-components=1
mv "$home/external/acl" "$home/include/acl"
for header in acl_meta aclnn_base; do one opbase "/aclnn/$header\.h\$" "aclnn/$header.h"; done
for header in hccl hccl_types; do one pytorch "third_party/hccl/inc/hccl/$header\.h\$" "hccl/$header.h"; done
sed -i 's,"third_party/[a-z]*/inc/,",' "$home"/include/hccl/*.h
echo '#define ACLNN_API' >"$home/include/aclnnop/aclnn_util.h" # which the build of these repositories makes
# made HEADER -- of an operator that has its definition only, their build makes the header: the stand-in's takes its place
made() {
    name=$(basename "$1" .h)
    git -C "$from/ops-nn" ls-tree -r --name-only HEAD | grep -q "/${name#aclnn_}_def\.cpp\$" || return
    { echo '#include "aclnn/acl_meta.h"' && sed -n '/define SIM_ACLNN/,$p' tests/sim/ascend/include/aclnn/aclnn_base.h &&
        sed -n '/^SIM_ACLNN/,$p' "tests/sim/ascend/include/$1"; } >"$home/include/$1"
    echo "SKIP $name.h: CANN's build makes it"
}
for header in $(grep -rhoE 'aclnnop/[a-z0-9_]+\.h' lab6_npu/*.cpp | sort -u); do
    name=$(basename "$header")
    one ops-math "/$name\$" "$header" || one ops-nn "/$name\$" "$header" || one ops-transformer "/$name\$" "$header" || made "$header" ||
        { echo "FAIL $name: in none of them" && failed=1; }
done

for cc in gcc clang; do
    command -v $cc >/dev/null || { echo "SKIP $cc" && continue; }
    if make --no-print-directory npu CI=1 CC=$cc BUILD="$home/$cc" ASCEND_TOOLKIT_HOME="$home" >"$home/$cc.log" 2>&1; then
        echo "PASS lab 6 compiles, $cc"
    else
        echo "FAIL lab 6 does not compile, $cc: $home/$cc.log" && failed=1
    fi
done

# constants INCLUDE -- "NAME VALUE" of all that lab 6 and its stand-in name and that header knows
constants() {
    grep -rhoE '\b(ACL|HCCL)_[A-Z0-9_]+\b' lab6_npu tests/sim/ascend | sort -u |
        while read -r name; do
            printf '#include "acl/acl.h"\n#include "hccl/hccl.h"\n#include "hccl/hccl_types.h"\nint x = sizeof(%s);\n' "$name" |
                g++ -std=c++17 -I"$1" -fsyntax-only -x c++ - 2>/dev/null && echo "$name"
        done >"$home/names"
    {
        printf '#include "acl/acl.h"\n#include "hccl/hccl.h"\n#include "hccl/hccl_types.h"\n#include <cstdio>\nint main() {\n'
        sed 's/.*/printf("& %lld\\n", (long long)(&));/' "$home/names"
        echo '}'
    } | g++ -std=c++17 -I"$1" -x c++ - -o "$home/constants" && "$home/constants" | sort
}
constants tests/sim/ascend/include >"$home/ours"
constants "$home/include" >"$home/theirs"
differ=$(join "$home/ours" "$home/theirs" | awk '$2 != $3')
n=$(join "$home/ours" "$home/theirs" | wc -l)
if [ -z "$differ" ] && [ "$n" -gt 0 ]; then
    echo "PASS $n constants have the makers' values"
else
    echo "FAIL constants, ours and theirs: $differ" && failed=1
fi
exit $failed
