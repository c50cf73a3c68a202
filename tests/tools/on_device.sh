#!/bin/sh
# on_device.sh -- the checks that train or grade, on another device than the CPU: what `make test DEVICE=NAME` runs.
#
#   tests/tools/on_device.sh DEVICE [BUILD]
#
# They are the checks of tier "device" in checks.txt, with FEW=1 of tier "few"; FSDP_DEVICE tells them which. Where there
# is no such device, this prints SKIP with the reason, counts that in $LOGS/totals (see env.sh) and returns 77; a name that
# is none is refused.
set -u
cd "$(dirname "$0")/../.." || exit 2
export FSDP_DEVICE="${1:?on_device.sh: which device?}" BUILD="${2:-${BUILD:-build}}"
# What stand-ins compute takes up to a hundred times as long as on the CPU: a part of what is trained, labs and units whole.
case $FSDP_DEVICE in *-sim) export EQUIVALENCE=few RANKS='1 3' SHARDINGS=full FSDP_TINY_STEPS=3 ;; esac
tier=device
[ -z "${FEW:-}" ] || { tier=few RANKS=3 && export RANKS; }
probe=$("$BUILD/tests/equivalence/equivalence" --probe 2>&1)
status=$?
[ $status -ne 0 ] || exec tests/tools/test.sh "$tier" "$BUILD"
echo "$probe"
. tests/tools/env.sh
mkdir -p "$LOGS" && rm -f "$LOGS/totals"
[ $status -ne 77 ] || echo '0 passed, 0 failed, 1 skipped' >"$LOGS/totals"
exit $status
