#!/bin/sh
# pack.sh [BUILD] -- copies cJSON, xxHash and cmocka to BUILD/gpu-pack: headers, libraries and .pc files. It is for a machine with
# a GPU and the same kind of processor, but without Debian's packages. make gpu-report finds it there.
set -eu
cd "$(dirname "$0")/../.."
pack=${1:-build}/gpu-pack
rm -rf "$pack" && mkdir -p "$pack/include" "$pack/lib/pkgconfig"
here=$(cd "$pack" && pwd)
for library in cjson xxhash cmocka; do
    file=$(${CC:-gcc} -print-file-name="lib$library.so")
    [ -e "$file" ] || { echo "pack: no lib$library.so" >&2 && echo 'HINT: make deps' >&2 && exit 1; }
    cp -L "$file" "$pack/lib/$(objdump -p "$file" | awk '/SONAME/ { print $2 }')"
    ln -s "$(objdump -p "$file" | awk '/SONAME/ { print $2 }')" "$pack/lib/lib$library.so"
done
cp -r /usr/include/cjson /usr/include/xxhash.h /usr/include/cmocka.h "$pack/include/"
# pc NAME LIBRARY -- writes a .pc file. pkg-config finds its present folder by ${pcfiledir}
pc() {
    # shellcheck disable=SC2016 # pkg-config expands these
    printf 'prefix=${pcfiledir}/../..\nName: %s\nDescription: carried\nVersion: %s\nCflags: -I${prefix}/include\nLibs: -L${prefix}/lib -l%s -Wl,-rpath,${prefix}/lib\n' \
        "$1" "$(pkg-config --modversion "$1")" "$2" >"$pack/lib/pkgconfig/$1.pc"
}
pc libcjson cjson
pc libxxhash xxhash
pc cmocka cmocka
# A pkg-config that knows only these three, for a machine that has none.
mkdir "$pack/bin" && cat >"$pack/bin/pkg-config" <<'END'
#!/bin/sh
prefix=$(cd "$(dirname "$0")/.." && pwd) flags='' libs=''
for word in "$@"; do
    case $word in
    --cflags*) flags="$flags -I$prefix/include" ;;
    --libs) libs=1 ;;
    libcjson | libxxhash | cmocka) [ -z "$libs" ] || flags="$flags -L$prefix/lib -l${word#lib} -Wl,-rpath,$prefix/lib" ;;
    --*) ;;
    *) exit 1 ;;
    esac
done
echo $flags
END
chmod +x "$pack/bin/pkg-config"
echo "pack: $here, $(du -sk "$pack" | cut -f1) kB"
