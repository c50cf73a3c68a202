#!/bin/sh
# install_test.sh [BUILD] -- make install and make uninstall, below a temporary DESTDIR and a prefix with a space in it; programs run
# from there, through a link and from another folder.
set -u
cd "$(dirname "$0")/../.." || exit 2
BUILD=${1:-build}
case $BUILD in /*) ;; *) BUILD=$PWD/$BUILD ;; esac
. tests/tools/test_lib.sh
begin install
unset DESTDIR PREFIX
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive
prefix='/opt/fsdp labs' to="$dir/root/opt/fsdp labs"
programs='fsdp_compare fsdp_generate fsdp_run fsdp_train'

# made TARGET VARIABLE=VALUE...
made() { make --no-print-directory BUILD="$BUILD" "$@" >"$log" 2>&1; }

touch "$dir/before"
cp -p "$BUILD/flags" "$dir/flags"
made install DESTDIR="$dir/root" PREFIX="$prefix" CFLAGS=-DOTHER CC=nonesuch &&
    cmp -s "$BUILD/flags" "$dir/flags" && [ -z "$(find "$BUILD" -maxdepth 1 -newer "$dir/before" -name 'fsdp_*')" ]
verdict 'it neither builds nor needs a compiler' $?
(cd "$dir/root" && find . -type f ! -name '*.so' | sort) >"$dir/files"
{
    for program in $programs; do echo "./opt/fsdp labs/bin/$program"; done
    echo './opt/fsdp labs/share/doc/fsdp-labs/LICENSE'
    for program in $programs; do echo "./opt/fsdp labs/share/man/man1/$program.1"; done
} | diff - "$dir/files" >>"$log"
verdict 'it installs the programs, the man pages and the licence' $?
find "$dir/root" -type f | while read -r file; do grep -qxF "installed $file" "$log" || echo "$file"; done >"$dir/unsaid"
[ ! -s "$dir/unsaid" ]
verdict 'it prints each file' $?

# A PATH with links to the programs, from another folder.
mkdir "$dir/path" "$dir/elsewhere"
ln -s "$to"/bin/* "$dir/path"
train() { # OPTION... -- two ranks
    (cd "$dir/elsewhere" && PATH=$dir/path:$PATH fsdp_run -n 2 "$dir/path/fsdp_train" --size tiny --synthetic 20000 --steps 3 --seq-len 16 \
        --ops portable --reduction canonical "$@") >"$log" 2>&1
}
train --loss-csv a.csv && "$BUILD/fsdp_train" --size tiny --synthetic 20000 --steps 3 --seq-len 16 --global-batch 8 --ops portable \
    --reduction canonical --loss-csv "$dir/elsewhere/b.csv" >"$log" 2>&1 &&
    (cd "$dir/elsewhere" && PATH=$dir/path:$PATH fsdp_compare a.csv b.csv) >"$log" 2>&1
verdict 'two ranks train from another folder, through links, with the bits of the build' $?
! train --device cuda-sim && said "bin/fsdp_cuda_sim.so: cannot open" '^.*HINT: make cuda-sim'
verdict 'a plug-in that is not installed is a HINT' $?
plugin="$to/lib/fsdp-labs/fsdp_cuda" built=$BUILD/fsdp_cuda_sim.so
[ -e "$built" ] || { echo 'SKIP install: a plug-in that works: there is no stand-in, which g++ builds' && touch "$dir/none" && built=$dir/none; }
mkdir "$dir/built" && ln -s "$BUILD"/fsdp_* "$dir/built" && ln -sf "$built" "$dir/built/fsdp_cuda.so" &&
    trainer/tools/install.sh install "$dir/built" "$dir/root" "$prefix" $programs >"$log" 2>&1 && said 'fsdp-labs/fsdp_cuda.so$' && cmp "$built" "$plugin.so"
verdict 'a plug-in is installed in ../lib/fsdp-labs' $?
mv "$plugin.so" "${plugin}_sim.so" && { [ ! -s "$built" ] || train --device cuda-sim; }
verdict 'and found there, from the program' $?
echo 'no plug-in' >"$to/bin/fsdp_cuda_sim.so"
! train --device cuda-sim && said 'fsdp_cuda_sim.so does not load: .*/bin/fsdp_cuda_sim.so'
verdict "one in the program's folder comes first" $?
rm "$to/bin/fsdp_cuda_sim.so" && mv "${plugin}_sim.so" "$plugin.so"
! train --parallel single && said "HINT: run $dir/path/fsdp_train --parallel single" && PATH=$dir/path:$PATH fsdp_train --help >"$log" &&
    said ' fsdp_run -n 4( |$)'
verdict 'hints and --help name the installed programs' $?

# The pages.
for program in $programs; do
    page=$to/share/man/man1/$program.1
    if command -v mandoc >/dev/null; then
        mandoc -Tlint "$page" >"$log" 2>&1
        verdict "mandoc has no complaint about $program.1" $?
    elif command -v groff >/dev/null; then
        groff -man -ww -z "$page" >"$log" 2>&1 && [ ! -s "$log" ]
        verdict "groff has no complaint about $program.1" $?
    else
        echo "SKIP install: $program.1: there is neither mandoc nor groff"
    fi
done
for option in $("$BUILD/fsdp_train" --help | grep -oE '^  --[a-z0-9-]+'); do
    grep -q "^\.B $(echo "$option" | sed 's/-/\\\\-/g')" "$to/share/man/man1/fsdp_train.1" || echo "$option"
done >"$log"
[ ! -s "$log" ] && ! grep -q build/ "$to"/share/man/man1/*
verdict 'the page of fsdp_train describes all options' $?
[ "$(grep -hxE '.* \\- [a-z]+ .{20,}' "$to"/share/man/man1/* | cut -d- -f2 | sort -u | wc -l)" -eq 4 ]
verdict 'each page says what its program does' $?

made uninstall DESTDIR="$dir/root" PREFIX="$prefix" && [ -z "$(find "$dir/root" ! -type d)" ] && [ ! -e "$to/lib/fsdp-labs" ]
verdict 'make uninstall leaves no file' $?
made uninstall DESTDIR="$dir/root" PREFIX="$prefix"
verdict 'make uninstall again is no error' $?

! made install DESTDIR="$dir/root" PREFIX=usr && said '^make install: PREFIX=usr is not' "^HINT: make install PREFIX=$PWD/usr"
verdict 'a relative PREFIX is refused' $?
echo >"$dir/file"
! made install DESTDIR="$dir/file" && said "^make install: cannot write $dir/file/usr/local/bin/" '^HINT: choose a PREFIX'
verdict 'a folder that cannot be written is an error' $?
! make BUILD="$dir/none" install DESTDIR="$dir/root" >"$log" 2>&1 && said "fsdp_[a-z]+ has not been built" '^HINT: make, and'
verdict 'without a build there is an error' $?
exit $bad
