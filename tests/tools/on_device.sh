#!/bin/sh
# on_device.sh -- what `make test DEVICE=NAME` runs: the checks that train or grade, on another device than the CPU.
#
#   tests/tools/on_device.sh DEVICE [BUILD]
#
# The checks are those of tier "device" in checks.txt. FSDP_DEVICE names the device to test programs and trainer. Where it cannot be
# had here, prints SKIP with the reason and returns 77.
set -u
cd "$(dirname "$0")/../.." || exit 2
export FSDP_DEVICE="${1:?on_device.sh: which device?}" BUILD="${2:-${BUILD:-build}}"
why=$("$BUILD/fsdp_train" --device "$FSDP_DEVICE" --parallel single --synthetic 1000 --steps 0 2>&1) || {
    case $why in
    *'not available'* | *ESKIP*) ;;
    esac
}
exec tests/tools/test.sh device "$BUILD"
