#!/bin/bash
# pages.sh -- systems with pages of 16 and 64 KiB: ranks train there with the bits of a system with 4 KiB. A library that is
# loaded in front of the programs (preload/page_bytes.c) refuses what a kernel with such pages refuses.
#
#   tests/cli/pages.sh [BUILD] [full]      full: 2 and 3 ranks with both sizes, not only 3 ranks with 64 KiB
#
# Also the message and its hint if the system refuses to map or to share memory.
. "$(dirname "$0")/lib.sh"
cli_start "$@"
fresh=1 all_ranks=3 all_bytes=65536
[ "${2:-}" != full ] || all_ranks='2 3' all_bytes='16384 65536'
small='--n-layer 2 --d-model 32 --n-head 2 --seq-len 16'
common='--synthetic 5000 --reduction canonical --global-batch 12 --steps 4'
export UCX_MEM_MMAP_HOOK_MODE=none # else UCX changes the code of mmap, in segments that begin at 4 KiB
cp "$build/tests/cli/page_bytes.so" "$work/bin" || exit 1
printf '#include <errno.h>\nint pkey_alloc(unsigned a, unsigned b) { (void)a; (void)b; errno = ENOSYS; return -1; }\n' |
    $cc -shared -fPIC -o "$work/bin/no_keys.so" -x c - || exit 1

# on PAGE_BYTES W OPTION... -- a run that succeeds. also: another library to load
on() {
    local bytes=$1
    shift
    starts="env LD_PRELOAD=${also:+$also:}$work/bin/page_bytes.so PAGE_BYTES=$bytes $starts" good "$@"
}

case_is 'the stand-in: a program learns the size of its pages'
[ "$(LD_PRELOAD=$work/bin/page_bytes.so PAGE_BYTES=65536 getconf PAGESIZE)" = 65536 ] || complain 'it does not'
printf '#include <sys/mman.h>
int main(void) {
    char *at = mmap(0, 1 << 17, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return at != MAP_FAILED && mprotect(at + 65536, 1, PROT_NONE) == 0 && mprotect(at + 32768, 1, PROT_NONE) != 0 ? 7 : 1;
}' | $cc -o "$work/bin/parts" -x c - || complain 'cannot compile'
LD_PRELOAD=$work/bin/page_bytes.so PAGE_BYTES=65536 ends_with 7 "$work/bin/parts"
LD_PRELOAD=$work/bin/page_bytes.so PAGE_BYTES=16384 ends_with 1 "$work/bin/parts"

# whole MODEL... -- this model, on one device without the stand-in
whole() {
    case_is "one device: $*"
    run="$* $common"
    good 1 $run --parallel single --loss-csv "$work/whole.csv" --export "$work/whole"
}

# same NAME OPTION... -- ranks train, save and resume with the losses and weights of one device
same() {
    local ranks bytes
    for ranks in $all_ranks; do
        for bytes in $all_bytes; do
            case_is "pages of $bytes bytes, $1" "$ranks" || continue
            on $bytes "$ranks" $run "${@:2}" --loss-csv "$new/loss.csv" --save "$new/save" --stop-after 2
            on $bytes "$ranks" $run "${@:2}" --loss-csv "$new/loss.csv" --resume "$new/save" --export "$new/export"
            resumed 2
            same_losses "$new/loss.csv" "$work/whole.csv"
            same_weights "$new/export" "$work/whole"
        done
    done
}

whole $small
same 'shared memory'
same 'DDP' --parallel ddp
same 'a device of its own memory' --device separate --check-order
same 'offloaded' --device separate --cpu-offload --wrap model
also=$work/bin/no_keys.so same 'guarded by mprotect' --device separate
whole --n-layer 3 --d-model 256 --n-head 4 --seq-len 16 # blocks of more than 2 MiB
same 'large blocks' --wrap model
same 'large blocks, a device of its own memory' --wrap model --device separate
for device in cuda-sim npu-sim; do
    plugin=fsdp_${device/-/_}.so
    if [ -e "$build/$plugin" ]; then
        cp "$build/$plugin" "$work/bin" && whole $small --device $device && same "$device"
    else
        skip "pages of 16384 and 65536 bytes, $device" "$plugin is not built"
    fi
done

# ---- what the system refuses ------------------------------------------------------------------------------------

run="$small $common"
case_is 'refused: pages of more than 64 KiB' 2
starts="env LD_PRELOAD=$work/bin/page_bytes.so PAGE_BYTES=131072 $starts" launch 2 $run
expect_status 1
says 'device_alloc: no memory for [0-9]+ bytes .*: Invalid argument; the device holds '
says '^HINT: use a kernel whose pages'
grep -q 'batch-size' "$work/err" && complain 'a hint that does not help'
printf '#include <errno.h>\n#include <stdlib.h>\n#include <string.h>\n#include <sys/syscall.h>\n#include <unistd.h>
int memfd_create(const char *name, unsigned flags) {
    if (strcmp(name, getenv("REFUSED")) != 0) return (int)syscall(SYS_memfd_create, name, flags);
    errno = atoi(getenv("REFUSED_ERRNO"));
    return -1;
}' | $cc -shared -fPIC -o "$work/bin/refuse.so" -x c - || complain 'cannot compile'
# no_file NAME ERRNO W -- memfd_create of this name fails
no_file() {
    starts="env LD_PRELOAD=$work/bin/refuse.so $starts" REFUSED=$1 REFUSED_ERRNO=$2 launch "$3" $run
}
case_is 'refused: the system forbids memfd_create' 2
no_file 'fsdp group' 13 2
expect_status 1
says 'fsdp_run: no shared memory for 2 ranks: Permission denied$'
says '^HINT: allow memfd_create'
case_is 'refused: too many open files for the memory of a rank' 2
no_file 'fsdp shared memory' 24 2
expect_status 1
says 'comm_open: rank [01] cannot make memory that others can map: Too many open files$'
says '^HINT: raise the limit on open files'
cli_end
