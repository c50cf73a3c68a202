# shellcheck shell=bash
# clock.sh -- sourced: a wait whose time limit follows the load of the machine.
#
#   await SECONDS COMMAND   evaluates COMMAND until it succeeds; false when the time is over
#
# A second counts whole while the processes that want to run have a core each. With R of them on N cores it counts N/R of a second, at
# least a tenth, so that what waits for a core is not taken for what hangs. A container's quota (cpu.max) limits N. LOADAVG, CPU_MAX:
# files instead of the kernel's (for tests).
milli_cores=$(($(nproc) * 1000))
if { read -r quota period <"${CPU_MAX:-/sys/fs/cgroup/cpu.max}"; } 2>/dev/null && [ "$quota" != max ]; then
    quota=$((quota * 1000 / period))
    milli_cores=$((quota < milli_cores ? quota : milli_cores))
fi

await() {
    local await_us=$(($1 * 1000000)) await_load await_since await_now=${EPOCHREALTIME/[.,]/}
    until eval "$2"; do
        [ $await_us -gt 0 ] || return
        sleep 0.05
        await_since=$await_now await_now=${EPOCHREALTIME/[.,]/}
        read -r _ _ _ await_load _ <"${LOADAVG:-/proc/loadavg}"
        await_load=${await_load%/*}000
        await_load=$((await_load > milli_cores ? await_load : milli_cores))
        await_load=$((await_load < 10 * milli_cores ? await_load : 10 * milli_cores))
        await_us=$((await_us - (await_now - await_since) * milli_cores / await_load))
    done
}
