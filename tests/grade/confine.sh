#!/bin/bash
# confine.sh -- run a command of a handed-in tree where it can reach nothing but what it is given.
#
#   tests/grade/confine.sh --kind [FOLDER]             print how commands that write below FOLDER are confined here, the best of these:
#       bwrap     bubblewrap: own file system, processes and network; system calls are filtered
#       uid       for root: Landlock if the kernel has it; filtered
#       landlock  Landlock: only the given paths; filtered
#       none      not at all; only with UNCONFINED=1
#   tests/grade/confine.sh --shows PATH...             print the first of these paths that a confined command could read
#   tests/grade/confine.sh --write FOLDER --in TREE -- COMMAND...
#                                                      run it in TREE; it reads TREE and the system's programs, and writes to FOLDER
#
# For root, commands run as a user that has no other process and no file, in each kind but none. Reads CONFINE, a kind instead of the
# best one, CONFINE_TOOL, the program that confine.c makes.
# The environment is cleared, except for variables that the tests need. Exit status: the command's; 125 if it cannot be confined.
set -u
SYSTEM=(/usr /bin /sbin /lib /lib32 /lib64 /libx32 /opt /nix/store /etc/alternatives /etc/ld.so.cache /etc/ld.so.conf /etc/ld.so.conf.d /etc/passwd /etc/group /etc/nsswitch.conf /etc/localtime /sys/devices/system)
KEEP='PATH LANG LC_ALL GRADE_RESULTS GRADE_JUDGE FSDP_TIMEOUT_S FSDP_COMM OMP_WAIT_POLICY OMP_NUM_THREADS HWLOC_HIDE_ERRORS UCX_LOG_LEVEL LD_LIBRARY_PATH'
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
tool=$(realpath -m -- "${CONFINE_TOOL:-build/tests/grade/confine}")

best() {
    for kind in bwrap uid landlock; do
        [ "$kind" = "${CONFINE:-$kind}" ] || continue
        CONFINE=$kind "$here/confine.sh" --write "$dir" --in "$dir" -- touch "$dir/written" >/dev/null 2>&1 && echo $kind && return
    done
    case ${UNCONFINED:-},${CONFINE:-none} in 1,none) echo none && return ;; esac
    [ -z "${CONFINE:-}" ] || {
        printf 'confine.sh: CONFINE=%s does not work here\nHINT: %s\n' "$CONFINE" 'leave CONFINE out: the best kind is then taken' >&2
        return 125
    }
    printf 'confine.sh: nothing here can confine a program: bwrap, root, or Landlock with %s\nHINT: %s\n' "$tool" \
        'install bubblewrap; as root, write to folders that every user may enter; or grade in a container or a virtual machine of its own with UNCONFINED=1, which results.json then says' >&2
    return 125
}
if [ "${1:-}" = --kind ]; then
    dir=$(mktemp -d "${2:-${TMPDIR:-/tmp}}/kind.XXXXXX") && trap 'rm -rf "$dir"' EXIT || exit 125
    best
    exit
fi

if [ "${1:-}" = --shows ]; then
    shift
    for path; do
        for shown in $(realpath -m -- "${SYSTEM[@]}"); do
            case $(realpath -m -- "$path")/ in "$shown"/*) echo "$path" && exit ;; esac
        done
    done
    exit
fi

[ "$1 ${3:-} ${5:-}" = '--write --in --' ] || exit 125
write=$2 tree=$4
shift 5
cd "$tree" || exit 125
environment=(HOME="$write" TMPDIR="$write")
for name in $KEEP; do
    [ -z "${!name+set}" ] || environment+=("$name=${!name}")
done
plain=(sh -c 'exec "$0" "$@"') # starts a program whatever its path is: env takes a path with = for a variable
filtered() {
    ulimit -d 2097152 # KiB of a process's own memory
    echo 1000 >/proc/self/oom_score_adj # if memory runs out, the system ends this first
    exec env -i "${environment[@]}" "${plain[@]}" "$@"
}

as=() share=(--unshare-all)
if [ "$(id -u)" -eq 0 ] && [ "${CONFINE:?}" != none ]; then
    # no user of the system has such a number; a container may have only the first 65536
    user=$(awk -v pid=$$ '{ n += $3 } END { print (n > 10000000 ? 5000000 + pid : 60000 + pid % 5000) }' /proc/self/uid_map)
    chown -R "$user:$user" "$write" || exit 125
    # while setpriv starts sh, it can still read what only root can
    as=(setpriv --reuid "$user" --regid "$user" --clear-groups --inh-caps=-all --bounding-set=-all --no-new-privs "${plain[@]}")
    share=(--unshare-ipc --unshare-pid --unshare-net --unshare-uts --unshare-cgroup-try) # in a user namespace root would stay root
fi
case ${CONFINE:?} in
bwrap)
    args=("${share[@]}" --new-session --die-with-parent --proc /proc --dev /dev --perms 1777 --tmpfs /dev/shm --perms 1777 --size $((1 << 30)) --tmpfs /tmp)
    for path in "${SYSTEM[@]}" "$tree" "$write"; do # the folders above them, empty; every user may enter them
        for ((i = 1; i < ${#path}; i++)); do
            [ "${path:i:1}" != / ] || args+=(--perms 0755 --dir "${path:0:i}")
        done
    done
    for path in "${SYSTEM[@]}"; do
        if [ -h "$path" ]; then args+=(--symlink "$(readlink "$path")" "$path"); else args+=(--ro-bind-try "$path" "$path"); fi
    done
    args+=(--remount-ro /proc) # else a program could raise its own place in the order in which memory is reclaimed
    exec 9< <("$tool" --filter)
    filtered bwrap "${args[@]}" --ro-bind "$tree" "$tree" --bind "$write" "$write" --chdir "$tree" --seccomp 9 -- "${as[@]}" "$@"
    ;;
uid)
    [ ${#as[@]} -gt 0 ] || exit 125
    only=(--only)
    "$tool" --only "$write" "${SYSTEM[@]}" -- true 2>/dev/null || only=()
    filtered "${as[@]}" "$tool" "${only[@]}" "$write" "${SYSTEM[@]}" "$tree" -- "$@"
    ;;
landlock) filtered "${as[@]}" "$tool" --only "$write" "${SYSTEM[@]}" "$tree" -- "$@" ;;
none) filtered "$@" ;;
*) exit 125 ;;
esac
