#!/bin/bash
# paths.sh -- kinds of paths for every option that reads or writes, and two processes on the same files. A usable path gets the
# whole file, an unusable one is refused before training, and changes by others change no number.
#
#   tests/cli/paths.sh [BUILD] [full]         default build; full: every option with every kind
#
# checkpoints.sh tests the --save directory, limits.sh the limits of the process.
. "$(dirname "$0")/lib.sh"
cli_start "$@"
tier=${2:-quick} top=$PWD fresh=1

model='--n-layer 1 --d-model 16 --n-head 2 --seq-len 16 --ops portable --reduction canonical --batch-size 0 --global-batch 12'
# A constant rate, so that the number of steps changes only where the run ends.
model="$model --lr 1e-3 --min-lr 1e-3 --warmup-steps 0"
text="--data $top/LICENSE"

case_is 'a whole run (W=1)'
good 1 $model $text --steps 4 --loss-csv "$work/whole.csv" --export "$work/whole" --save "$work/saved"

# ---- kinds of paths ---------------------------------------------------------------------------------------------

# class_of OPTION -- file or dir (written), data or checkpoint (read)
class_of() {
    case $1 in
    loss-csv | memory-report | digests | export-optimizer | snapshot) echo file ;;
    save | export | export-init | profile) echo dir ;;
    data | val-data) echo data ;;
    resume) echo checkpoint ;;
    esac
}

# provide CLASS PATH -- makes a valid PATH for an option of this class
provide() {
    case $1 in
    file) echo old >"$2" ;;
    dir) mkdir "$2" ;;
    data) cp "$top/LICENSE" "$2" ;;
    checkpoint) cp -r "$work/saved" "$2" ;;
    esac
}

# prepare KIND CLASS -- makes the path in the current directory; sets path
prepare() {
    path=x
    case $1 in
    link) provide "$2" target && ln -s target x ;;
    'link to a link') provide "$2" target && mkdir sub && ln -s ../target sub/y && ln -s sub/y x ;;
    'link to nothing') ln -s nothing x ;;
    'link to itself') ln -s x x ;;
    'link of somebody, all may write')
        mkdir -m 1777 tmp && provide "$2" target && ln -s ../target tmp/x && chown -h 54321 tmp/x && path=tmp/x
        ;;
    'slashes at the end') provide "$2" x && path=x// ;;
    'the way up') mkdir sub && provide "$2" x && path=./sub/../x ;;
    'current directory') path=. && { [ "$2" != checkpoint ] || cp -r "$work/saved/." .; } ;;
    'pipe') mkfifo x ;;
    'null device') path=/dev/null ;;
    'other kind') case $2 in file | data) mkdir x ;; *) echo text >x ;; esac ;;
    'spaces, a new line, UTF-8') path=$' ä\n *x' && provide "$2" "$path" ;;
    'name that looks like an option') path=./--x && provide "$2" "$path" ;;
    'name of 200 bytes') path=$(printf 'n%.0s' {1..200}) && provide "$2" "$path" ;;
    'name of 255 bytes') path=$(printf 'n%.0s' {1..255}) && provide "$2" "$path" ;;
    'name of 256 bytes') path=$(printf 'n%.0s' {1..256}) ;;
    'path of 4000 bytes') path=$(printf './%.0s' {1..1999})x && provide "$2" x ;;
    'path of 4090 bytes') path=$(printf './%.0s' {1..2044})xx && provide "$2" xx ;;
    'path of 5000 bytes') path=$(printf './%.0s' {1..2500})x && provide "$2" x ;;
    'read-only file system') mkdir ro && mount -t tmpfs tmpfs ro && provide "$2" ro/x && mount -o remount,ro ro && path=ro/x ;;
    'lower layer')
        mkdir over && mount -t tmpfs tmpfs over && mkdir over/{lower,upper,work,merged} && provide "$2" over/lower/x &&
            mount -t overlay overlay -o lowerdir=over/lower,upperdir=over/upper,workdir=over/work over/merged 2>/dev/null &&
            path=over/merged/x
        ;;
    'mount point')
        mkdir at && mount -t tmpfs tmpfs at && path=at
        case $2 in
        file | data) provide "$2" source && : >y && mount --bind source y && path=y ;;
        checkpoint) cp -r "$work/saved/." at ;;
        esac
        ;;
    'directory of somebody else') mkdir -m 700 closed && provide "$2" closed/x && path=closed/x ;;
    'directory that one may read') mkdir -m 755 open && provide "$2" open/x && path=open/x ;;
    'directory without x') mkdir -m 666 none && provide "$2" none/x && path=none/x ;;
    esac
}

# outcome_of KIND CLASS -- fine; or refused, which means before training, once, with a hint
outcome_of() {
    case "$1 $2" in
    *' file') set -- "$1" 1 ;;
    *' dir') set -- "$1" 2 ;;
    *' data') set -- "$1" 3 ;;
    *) set -- "$1" 4 ;;
    esac
    # columns: a file, a directory, data, a checkpoint; + fine, - refused
    sed -n "s/^$1 *| //p" <<'TABLE' | cut -c"$2" | tr +- fr | sed 's/f/fine/; s/r/refused/'
link                           | ++++
link to a link                 | ++++
link to nothing                | +---
link to itself                 | ----
link of somebody, all may write | --
slashes at the end             | -+-+
the way up                     | ++++
current directory              | -+-+
pipe                           | ----
null device                    | +---
other kind                     | ----
spaces, a new line, UTF-8      | ++++
name that looks like an option | ++++
name of 200 bytes              | ++++
name of 255 bytes              | -+++
name of 256 bytes              | ----
path of 4000 bytes             | +-+-
path of 4090 bytes             | --+-
path of 5000 bytes             | ----
read-only file system          | --++
lower layer                    | ++++
mount point                    | -+++
directory of somebody else     | ----
directory that one may read    | --++
directory without x            | ----
TABLE
}

# written OPTION PATH CLASS -- what was written is whole
written() {
    case $1 in
    loss-csv) [ -c "$2" ] || [ "$(losses "$2")" = "$(losses "$work/whole.csv")" ] || complain 'no losses, or others' ;;
    digests) [ -c "$2" ] || tail -1 "$2" | grep -qx '# end: [0-9]* rows' || complain 'no digests' ;;
    memory-report) [ -c "$2" ] || grep -q '^what,name' "$2" || complain 'no report' ;;
    snapshot) [ -c "$2" ] || tail -1 "$2" | grep -qx '</html>' || complain 'no page' ;;
    export) same_weights "$2" "$work/whole" ;;
    export-optimizer) [ -c "$2" ] || grep -aq 'wte.weight.exp_avg_sq' "$2" || complain 'no states' ;;
    export-init) [ -s "$2/model.safetensors" ] || complain 'no weights' ;;
    profile) [ -s "$2/profile.md" ] || complain 'no profile' ;;
    save) [ "$(cat "$2/latest")" = step-4 ] || complain 'no checkpoint' ;;
    resume) grep -q '^resumed at step 4' "$work/out" || complain 'not resumed' ;;
    esac
}

# kind OPTION KIND [as WORD...] -- a case; WORDs precede the command
kind() {
    local option=$1 kind=$2 class expected before left
    shift 2
    case_is "--$option: $kind" || return
    class=$(class_of "$option") expected=$(outcome_of "$kind" "$class")
    mkdir "$new/at" && chmod 777 "$new/at" && cd "$new/at" || return
    if ! prepare "$kind" "$class"; then
        skip "$name" 'cannot be made here'
    else
        before=$(find . ! -path './x/lock' | LC_ALL=C sort)
        set -- "$@" "$trainer" $model --steps 4 "--$option=$path"
        [ "$option" = data ] || set -- "$@" $text
        timed "$@"
        if [ "$expected" = fine ]; then
            expect_status 0
            written "$option" "$path"
            [ ! -L x ] || [ "$class" != file ] || [ -f target ] || [ -f nothing ] || complain 'the link was not followed'
        else
            expect_status 1
            untrained
            [ "$(grep -c '^HINT: ' "$work/err")" = 1 ] || complain 'expected one hint'
            left=$(find . ! -path './x/lock' | LC_ALL=C sort)
            [ "$left" = "$before" ] || complain "there is more than before: $left"
        fi
        [ "$kind" != 'null device' ] || [ -c /dev/null ] || complain '/dev/null is gone'
    fi
    check_no_tmp
    for left in over/merged over ro at y; do umount $left 2>/dev/null; done
    cd "$top" || exit 2
}

kinds=('link' 'link to nothing' 'current directory' 'pipe' 'null device' 'other kind' 'spaces, a new line, UTF-8'
    'name of 255 bytes' 'path of 4090 bytes')
options=(loss-csv export save resume)
if [ "$tier" = full ]; then
    kinds=('link' 'link to a link' 'link to nothing' 'link to itself' 'slashes at the end' 'the way up' 'current directory'
        'pipe' 'null device' 'other kind' 'spaces, a new line, UTF-8' 'name that looks like an option' 'name of 200 bytes'
        'name of 255 bytes' 'name of 256 bytes' 'path of 4000 bytes' 'path of 4090 bytes' 'path of 5000 bytes')
    options=(loss-csv memory-report digests export-optimizer snapshot save export export-init profile data val-data resume)
fi
for option in "${options[@]}"; do
    for kind in "${kinds[@]}"; do # a run opens these only at its end
        [[ "$option $kind" =~ ^(memory-report|export-optimizer|snapshot)' pipe' ]] || kind "$option" "$kind"
    done
    if [ -n "${CLI_NAMESPACE:-}" ]; then
        kind "$option" 'read-only file system'
        [ "$tier" = quick ] || kind "$option" 'lower layer'
        [ "$tier$option" = quickresume ] || kind "$option" 'mount point'
    fi
    [ "$(id -u)" != 0 ] || [[ $option = *data || $option = resume ]] || kind "$option" 'link of somebody, all may write'
    if [ "$(id -u)" = 0 ] && [ "$tier" = full ]; then # root may do all of this
        chmod 755 "$work" && chmod -R a+rX "$work/saved"
        for kind in 'directory of somebody else' 'directory that one may read' 'directory without x'; do
            kind "$option" "$kind" setpriv --reuid 54321 --regid 54321 --clear-groups
        done
    fi
done

# ---- two processes on the same files ----------------------------------------------------------------------------

# begin OPTION... -- starts a job of two ranks that saves, and waits until its loss file has rows
csv=$new/loss.csv
begin() {
    start 2 $model --steps 1000000 --save "$new/save" --loss-csv "$csv" "$@"
    trains_on 3
}

# end ROWS FILE -- the job saves and ends; its first rows are equal to those of the undisturbed run
end() {
    hurt 'kill -TERM $job'
    expect_status 143
    [ "$(losses "$new/loss.csv" | head -n "$1")" = "$(losses "$2" | head -n "$1")" ] || complain 'other losses'
    check_no_tmp
}

# disturb NAME COMMAND [DATA] -- false if the case is not selected. 2 ranks train on $new/data (or DATA there) and COMMAND changes
# the data
disturb() {
    case_is "--data is $1 while training" 2 || return
    data=${3:-data}
    rm -rf "$work/unchanged"
    cp "$top/LICENSE" "$new/data" && mkdir "$new/shards" && cp "$work/shard.bin" "$new/shards/a.bin" &&
        cp "$work/shard.bin" "$new/shards/b.bin" && cp -r "$new" "$work/unchanged"
    begin --data "$new/$data"
    eval "$2"
}

# unharmed NAME COMMAND [DATA] -- no number changes, in the rows up to 50 after the change.
unharmed() {
    local rows_seen
    disturb "$@" || return
    rows_seen=$(($(rows) + 50))
    until_true "[ \$(rows) -gt $rows_seen ]"
    launch 1 $model --stop-after $rows_seen --steps 1000000 --data "$work/unchanged/$data" --loss-csv "$work/long.csv"
    end $rows_seen "$work/long.csv"
}

# noticed NAME COMMAND [DATA] -- the job ends and says why
noticed() {
    disturb "$@" || return
    hurt ''
    expect_status 1
    says "data: $new/.*: was (changed while the run used it|shortened while it was read)"
    says '^HINT: '
    check_no_tmp
}
perl -e 'print pack("l<256", 20240520, 1, 3000), pack("S<*", map { $_ * $_ % 251 } 1 .. 3000)' >"$work/shard.bin"
noticed 'cut off' ': >"$new/data"'
noticed 'rewritten' 'tr a-z b-za <"$top/LICENSE" | dd of="$new/data" conv=notrunc status=none'
unharmed 'touched, and removed' 'touch "$new/data" && rm "$new/data"'
[ "$tier" = quick ] || unharmed 'replaced' 'tr a-z b-za <"$top/LICENSE" >"$new/other" && mv "$new/other" "$new/data"'
[ "$tier" = quick ] || noticed 'one shard that is cut off' 'truncate -s 2000 "$new/shards/a.bin"' "shards/*.bin"
noticed 'shards that are rewritten' 'head -c 7024 /dev/zero | tr "\\0" "\\377" >"$new/shards/b.bin"' shards

if case_is 'two jobs write the same files (W=1, W=2)'; then
    same="--steps 40 --loss-csv $new/loss.csv --export $new/export --memory-report $new/report --profile $new/profile"
    launch 1 $model $text --steps 40 --loss-csv "$work/long.csv" --export "$work/long"
    $trainer $model $text $same >"$work/log" 2>&1 </dev/null &
    job=$!
    launch 2 $model $text $same
    [ "$rc" = 0 ] || complain "the second: exit status $rc"
    hurt ''
    [ "$rc" = 0 ] || complain "the first: exit status $rc: $(tail -n 2 "$work/log")"
    same_losses "$new/loss.csv" "$work/long.csv"
    same_weights "$new/export" "$work/long"
    [ "$(grep -c '^what,name' "$new/report")" = 1 ] || complain 'no report'
    [ -s "$new/profile/profile.md" ] || complain 'no profile'
    check_no_tmp
fi

if case_is 'what a killed run left is removed by the next' 2; then
    begin $text
    hurt 'kill -KILL $job'
    check_left
    [ "$(rows)" -ge 3 ] || complain 'it left nothing'
    launch 1 $model $text --steps 4 --loss-csv "$new/loss.csv"
    check_no_tmp
    same_losses "$new/loss.csv" "$work/whole.csv"
fi

# A checkpoint that is pruned during a read is either read whole or refused.
if case_is 'checkpoints are removed while others resume from them' 2; then
    launch 1 $model $text --stop-after 420 --steps 1000000 --loss-csv "$work/long.csv"
    $starts -n 2 "$trainer" $model --steps 1000000 --save "$new/save" $text --save-every 1 --keep 1 --stop-after 400 >"$work/log" 2>&1 &
    job=$!
    until_true '[ -e "$new/save/latest" ]'
    for try in 1 2 3 4 5 6 7 8; do
        step=$(sed 's/step-//' "$new/save/latest")
        launch $((try % 2 + 1)) $model $text --steps 1000000 --resume "$new/save" --loss-csv "$new/other.csv" \
            --stop-after $((step + 20))
        [ "$rc" = 0 ] || grep -q 'No such file\|is damaged' "$work/err" || complain "exit status $rc"
        [ "$rc" = 0 ] || [ "$(grep -c '^HINT: ' "$work/err")" = 1 ] || complain 'expected one hint'
        [ ! -e "$new/other.csv" ] || [ -z "$(losses "$new/other.csv" | grep -vxF -f <(losses "$work/long.csv"))" ] ||
            complain 'other losses'
        rm -f "$new/other.csv"
    done
    hurt 'kill -TERM $job'
    check_no_tmp
fi

# ---- directories that vanish while a job trains -----------------------------------------------------------------

# saves_elsewhere COMMAND -- the job saves and trains on; after COMMAND it saves again. If a rank gets a signal some steps later,
# all ranks save once more
saves_elsewhere() {
    kill -USR1 "$job"
    until_true '[ -e "$new/save/latest" ]'
    trains_on 20
    eval "$1"
    kill -USR1 "$job"
}
for how in '' --save-async; do
    if case_is "--save is removed while training${how:+, $how}" 2; then
        begin $text $how
        saves_elsewhere 'mv "$new/save" "$new/away"'
        hurt ''
        expect_status 1
        says 'lock: No such file'
        says '^HINT: '
        good 1 $model $text --steps 0 --resume "$new/away"
        says '^resumed at step' "$work/out"
        check_no_tmp
    fi
    if case_is "--save is another directory while training${how:+, $how}" 2; then
        mkdir "$new/first" "$new/second" && ln -s first "$new/save" && ln -s second "$new/link"
        begin $text $how
        saves_elsewhere 'mv -T "$new/link" "$new/save"' # in one operation
        until_true '[ -e "$new/save/latest" ]'
        cp "$new/second/lock" "$work/lock"
        end 3 "$work/whole.csv"
        says "^process [0-9]* on host $(hostname)$" "$work/lock"
        good 1 $model $text --steps 0 --resume "$new/first"
        says '^resumed at step' "$work/out"
    fi
done

if [ -n "${CLI_NAMESPACE:-}" ] && case_is 'make demo without licence texts'; then
    mkdir "$new/linked" && ln -s "$(realpath "$build")"/fsdp_* "$new/linked"
    timed unshare -m sh -c 'mount -t tmpfs tmpfs /usr/share && DEMO_STEPS=2 DEMO_RANKS=2 exec tests/tools/demo.sh "$0"' "$new/linked"
    expect_status 0
    says '^data: WRITEUP.md, ' "$work/out"
fi
[ -n "${CLI_NAMESPACE:-}" ] || skip 'file systems' 'not root, or no mount namespaces here'
[ "$(id -u)" = 0 ] || skip 'permissions' 'not root'
cli_end
