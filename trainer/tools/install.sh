#!/bin/sh
# install.sh install|uninstall BUILD DESTDIR PREFIX PROGRAM... -- what make install and make uninstall do.
#
# Copies to PREFIX below DESTDIR: the programs to bin/, the plug-ins that have been built to lib/fsdp-labs/, where programs look for
# them relative to themselves (common/ops/backends.c), a man page of each program to share/man/man1/, and the licence to
# share/doc/fsdp-labs/. The plug-ins that stand in for a device in tests are not installed. Builds nothing. Prints each file.
set -u
action=$1 build=$2 destdir=$3 prefix=$4
shift 4
to=$destdir$prefix

give_up() { printf 'make %s: %s\nHINT: %s\n' "$action" "$1" "$2" >&2 && exit 1; }

case $prefix in
/*) ;;
*) give_up "PREFIX=$prefix is not an absolute path" "make $action PREFIX=$PWD/$prefix" ;;
esac

# put MODE SOURCE FILE -- copy SOURCE to FILE below the prefix; or, for uninstall, remove FILE
put() {
    if [ "$action" = uninstall ]; then
        [ ! -e "$to/$3" ] || { rm "$to/$3" && echo "removed $to/$3"; }
    else
        install -D -m "$1" "$2" "$to/$3" && echo "installed $to/$3"
    fi || give_up "cannot write $to/$3" 'choose a PREFIX or DESTDIR that you may write to, or run it with sudo'
}

# man_page PROGRAM -- write its man page to $page, from its --help. Found in PATH, it says fsdp_run, not build/fsdp_run.
page=$(mktemp "${TMPDIR:-/tmp}/fsdp-man.XXXXXX") && trap 'rm -f "$page"' EXIT || exit 1
man_page() {
    day=$(date -u -d "@${SOURCE_DATE_EPOCH:-$(stat -c %Y "$build/$1")}" +%F)
    PATH="$build:$PATH" "$1" --help >"$page.help" 2>/dev/null && awk -v name="$1" -v day="$day" -f trainer/tools/man.awk "$page.help" >"$page"
    said=$?
    rm -f "$page.help"
    return $said
}

for program; do
    [ "$action" = uninstall ] || [ -x "$build/$program" ] || give_up "$build/$program has not been built" 'make, and then make install'
done
for program; do
    put 755 "$build/$program" "bin/$program"
    if [ "$action" = uninstall ] || man_page "$program"; then
        put 644 "$page" "share/man/man1/$program.1"
    else
        echo "no man page: $build/$program does not run on this machine"
    fi
done
for plugin in fsdp_cuda.so fsdp_npu.so; do
    [ "$action" = install ] && [ ! -e "$build/$plugin" ] || put 755 "$build/$plugin" "lib/fsdp-labs/$plugin"
done
put 644 LICENSE share/doc/fsdp-labs/LICENSE
[ "$action" = install ] || rmdir "$to/lib/fsdp-labs" "$to/share/doc/fsdp-labs" 2>/dev/null || :
