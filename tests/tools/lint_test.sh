#!/bin/sh
# lint_test.sh -- runs lint.sh on a copy of the tree, with functions, variables and links that its rules forbid or allow.
set -u
cd "$(dirname "$0")/../.." || exit 2
. tests/tools/tree.sh
. tests/tools/test_lib.sh
. tests/tools/probe.sh
begin lint
cc=$(built_by "${BUILD:-build}") || exit 2
mkdir "$dir/tree" && tree_files . | tree_copy . "$dir/tree" && cd "$dir/tree" || exit 2

cat >common/base/planted.h <<'END'
#pragma once

void bad_bare(void);

/* good_first -- under a comment of its own,
 * whose first row was joined to it: errors  bad_row
 *   order  good_row */
void good_first(void);
void good_of_group(void);

/* good_*_many -- all of them. */
void good_how_many(void);

/* bad_other -- about something else. */
void bad_headless(void);
END
cat >common/base/planted.c <<'END'
#include "common/base/planted.h"

void bad_seven(int a, int b, int c, int d, int e, int f, int g);
void comm_bad_nine(int a, int b, int c, int d, int e, int f, int g, int h, int i);
void comm_good_eight(int a, int b, int c, int d, int e, int f, int g, int h);
void good_pointer(int (*a)(int, int), int (*b)(int, int), int c, int d, int e, int f);

int bad_count;
static int bad_value = 1;
static _Thread_local int bad_of_thread;
const char *const good_names[] = {"a", "b"};
int *good_use(int i)
{
    static int bad_static;
    return i == 0 ? &bad_static : i == 1 ? &bad_value : &bad_of_thread;
}

void good_write(void **out);
void *good_alias(void *args)
{
    float *good_read, *good_typed;
    void *bad_cast = &good_typed;
    good_read = *(float **)args;
    bad_cast = ((void **)bad_cast)[0];
    bad_cast = (good_write((void **)&good_typed), args);
    return good_read ? bad_cast : good_typed;
}
END
cat >docs/planted.md <<'END'
## The `good_heading`: 1-2, it's one
[1](#the-good_heading-1-2-its-one) [2](../README.md#the-labs) [3](bad_gone.md) [4](options.md#bad_heading)
END
mkdir -p build/common/base && $cc -O1 -c -I. -o build/common/base/planted.o common/base/planted.c || exit 2
BUILD=build tests/tools/lint.sh >"$dir/out" 2>&1 && echo 'FAIL lint: exit status 0 of a tree with offenders' && bad=1

for rule in links parameters contracts contract-rows globals out-pointers; do
    if grep -q "^SKIP $rule" "$dir/out"; then
        grep "^SKIP $rule" "$dir/out"
        continue
    fi
    case $rule in
    links) offenders='bad_gone.md options.md#bad_heading' ;;
    parameters) offenders='bad_seven comm_bad_nine' ;;
    contracts) offenders='bad_bare bad_headless' ;;
    contract-rows) offenders='*' ;; # the second word of the only line
    globals) offenders='bad_count bad_of_thread bad_static bad_value' ;;
    out-pointers) offenders='bad_cast bad_cast' ;;
    esac
    found=$(awk -v rule="$rule:" '/^[A-Z]/ { of = $2 == rule } of && /^ .*(bad|good)_/ { sub(":", "", $2); print $2 }' "$dir/out" | sort | xargs)
    [ "$found" = "$offenders" ]
    verdict "$rule: found $found, expected $offenders" $?
done
exit $bad
