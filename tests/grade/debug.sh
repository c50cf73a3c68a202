#!/bin/sh
# debug.sh -- run a task with one rank under gdb. The other ranks run and wait for it at the next collective.
#
#   tests/grade/debug.sh --task T --rank R [--ranks W] [--break FUNCTION] [--check] [BUILD]      (make debug TASK=2.1 RANK=1)
#
# --check checks the arguments and that gdb is there, and runs nothing. GDB names another gdb.
# On a terminal, gdb starts the program, stops at FUNCTION (default: main) and prompts. Without a terminal, the program runs to
# FUNCTION, if given, or until it crashes, and gdb prints a backtrace for tests and logs.
#
# The launcher takes the terminal away from the ranks, so this script passes its name down. The rank opens the terminal in its own
# session, where reading does not stop the process, and gets Ctrl-C passed to gdb. Collectives have no time limits meanwhile.
set -u
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)

# As a rank: debug.sh --as-rank PROGRAM ARGS... The launcher's environment has the rank's number.
if [ "${1:-}" = --as-rank ]; then
    shift
    rank=${FSDP_RUN%% *}
    [ "$rank" = "$DEBUG_RANK" ] || exec "$@"
    if [ -z "$DEBUG_TTY" ]; then
        exec "${GDB:-gdb}" -nx -batch -ex 'set pagination off' -ex 'set print thread-events off' ${DEBUG_BREAK:+-ex "break $DEBUG_BREAK"} \
            -ex run -ex backtrace -ex kill --args "$@" 2>&1
    fi
    # shellcheck disable=SC2016 # the inner shell's
    exec setsid -w sh -c 'echo $$ >"$DEBUG_PID"; exec "$@" <"$DEBUG_TTY" >"$DEBUG_TTY" 2>&1' sh "${GDB:-gdb}" -q \
        -ex 'set confirm off' -ex 'set print thread-events off' -ex "break ${DEBUG_BREAK:-main}" -ex run --args "$@"
fi

TASKS=${GRADE_TASKS:-$here/tasks.txt}
task='' rank='' ranks=3 stop='' only_checks='' BUILD=${BUILD:-build}
# refuse WHAT HINT
refuse() {
    printf 'debug.sh: %s\nHINT: %s\n' "$1" "$2" >&2
    exit 2
}
usage() { refuse "$1" 'make debug LAB=2 TASK=2.1 RANK=1 [RANKS=3] [BREAK=unshard_begin]'; }
while [ $# -gt 0 ]; do
    case $1 in
    --task) task=${2:-} && shift ;;
    --rank) rank=${2:-} && shift ;;
    --ranks) ranks=${2:-} && shift ;;
    --break) stop=${2:-} && shift ;;
    --check) only_checks=yes ;;
    -*) usage "got the option $1, expected --task, --rank, --ranks or --break" ;;
    *) BUILD=$1 ;;
    esac
    shift
done
program=$(awk -v t="$task" '!/^#/ && $1 == t "" { print $5 }' "$TASKS")
[ -n "$program" ] || usage "got TASK=$task, expected a task of tests/grade/tasks.txt"
case $rank,$ranks in
*[!0-9,]* | ,* | *,) usage "got RANK=$rank RANKS=$ranks, expected numbers" ;;
esac
[ "$rank" -lt "$ranks" ] || usage "got RANK=$rank, expected one from 0 to $((ranks - 1)) of RANKS=$ranks"
command -v "${GDB:-gdb}" >/dev/null 2>&1 || refuse "there is no ${GDB:-gdb} on this machine" 'apt-get install gdb'
[ -z "$only_checks" ] || exit 0
program=$BUILD/tests/grade/$program
[ -x "$program" ] || refuse "there is no $program" "make debug TASK=$task builds it"

FSDP_TOOLS=$here/../tools && . "$FSDP_TOOLS/env.sh"
DEBUG_PID=$(mktemp "${TMPDIR:-/tmp}/fsdp-debug.XXXXXX") || exit 2
trap 'gdb=$(cat "$DEBUG_PID"); rm -f "$DEBUG_PID"; [ -z "$gdb" ] || kill -KILL "$gdb" 2>/dev/null' EXIT # gdb has its own session
# ignore Ctrl-C until the launcher is done: it is for gdb
trap 'kill -INT "$(cat "$DEBUG_PID")" 2>/dev/null' INT
DEBUG_TTY=$(tty) || DEBUG_TTY=''
export DEBUG_RANK="$rank" DEBUG_TTY DEBUG_PID DEBUG_BREAK="$stop" FSDP_TIMEOUT_S=1000000
# shellcheck disable=SC2086 # words
setsid $LAUNCHER -n "$ranks" "$here/debug.sh" --as-rank "$program" --task "$task" </dev/null &
launcher=$!
while kill -0 $launcher 2>/dev/null; do wait $launcher; status=$?; done
exit $status
