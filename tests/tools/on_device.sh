#!/bin/sh
# on_device.sh -- runs the checks that train or grade on a device other than the CPU, for `make test DEVICE=NAME`.
#
#   tests/tools/on_device.sh DEVICE [BUILD]
#
# These are the checks of tier "device" in checks.txt, with FEW=1 the checks of tier "few". They read FSDP_DEVICE. If this machine
# has no such device, this prints SKIP with the reason, writes the skip to $LOGS/totals (see env.sh) and returns 77. An unknown
# name is refused.
set -u
cd "$(dirname "$0")/../.." || exit 2
export FSDP_DEVICE="${1:?on_device.sh: which device?}" BUILD="${2:-${BUILD:-build}}"
# Stand-ins are up to a hundred times slower than the CPU, so less training is tested on them; labs and units run whole.
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
