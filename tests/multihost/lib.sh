# shellcheck shell=bash disable=SC2034 # the scripts that source this use the variables
# lib.sh -- what run.sh and slurm.sh share; they source it from the repository root.

# begin NAME 'PART...' 'PROGRAM...' 'TOOL:PACKAGE...' [BUILD [PART...]] -- sets BUILD and parts; without PART all parts. Exits with
# a message if a part is unknown or a program is not built; exits with a SKIP if root, MPI or a tool is missing.
begin() {
    suite=$1
    local known=$2 programs=$3 tools=$4 part program tool
    BUILD=$(realpath "${5:-build}") parts=${*:6}
    for part in ${parts:=$known}; do
        [[ " $known " == *" $part "* ]] || { echo "usage: $0 [BUILD [${known// /|}]...]" >&2 && exit 2; }
    done
    for program in $programs; do
        [ -x "$BUILD/$program" ] && continue
        printf '%s: %s is not built\nHINT: make tests\n' "$suite" "$BUILD/$program" >&2
        exit 2
    done
    . tests/tools/env.sh
    . tests/tools/clock.sh
    no_mpi "$suite" && exit 77
    [ "$(id -u)" = 0 ] || cannot 'namespaces need root'
    for tool in $tools; do
        command -v "${tool%:*}" >/dev/null || cannot "no ${tool%:*} here: apt-get install ${tool#*:}"
    done
}

# cannot WHY -- skips all parts
cannot() {
    echo "SKIP $suite: $1"
    exit 77
}

# bridge NAME ADDRESS -- makes a network; ADDRESS is this host's on it
bridge() {
    ip link add "$1" type bridge && ip addr add "$2/24" dev "$1" && ip link set "$1" up
}

# joined NAMESPACE LINK BRIDGE ADDRESS -- joins a new host, a network namespace, to the network. LINK is its cable
joined() {
    ip netns add "$1" && ip link add "$2" type veth peer name eth0 netns "$1" && ip link set "$2" master "$3" up &&
        ip -n "$1" addr add "$4/24" dev eth0 && ip -n "$1" link set eth0 up && ip -n "$1" link set lo up
}

# rank_process PATTERN VARIABLE=RANK -- of the processes that match PATTERN, the one with this variable in its environment
rank_process() {
    local p
    for p in $(pgrep -f "$1"); do
        tr '\0' '\n' <"/proc/$p/environ" 2>/dev/null | grep -qx "$2" && echo "$p"
    done
}
