#!/bin/sh
# portable_csv.sh [--fetch] -- trains the tiny models of each family with every available compiler and machine level: gcc and
# clang at x86-64, x86-64-v3 and native, and an aarch64 build under qemu-user, also on two ranks that its fsdp_run starts, and
# with pages of 64 KiB. The losses and final weights must have the committed bits (tests/reference/losses.sh).
#
# --fetch, as root, downloads cJSON and xxHash for arm64 into a temporary folder, for the aarch64 build. It installs nothing.
# A missing compiler or library is a SKIP. Prints PASS, FAIL and SKIP lines; exit status not 0 after a FAIL.
set -u
. tests/tools/test_lib.sh
begin portable
jobs=-j$(nproc)
MODELS='tiny llama-tiny llama31-tiny mnist-tiny'

# check NAME FOLDER RANKS MODEL... -- runs the trainer in this build folder and compares; NAME stands in every line
check() {
    name=$1 build=$2 ranks=$3
    shift 3
    RANKS=$ranks SHARDINGS=full tests/reference/losses.sh "$build" "$@" >"$log" || bad=1
    sed -E "s/^(PASS|FAIL) reference /\\1 portable: $name, /" "$log"
}

native() {
    cc=$1 march=$2
    if ! command -v "$cc" > /dev/null; then
        echo "SKIP portable: losses, $cc $march: no $cc"
        return
    fi
    if ! make --no-print-directory "$jobs" BUILD="$dir/build" CC="$cc" MARCH="-march=$march" \
        "$dir/build/fsdp_train" "$dir/build/fsdp_compare" > "$log" 2>&1; then
        verdict "losses, $cc $march: the build" 1
    elif [ "$march" != native ] && ! "$dir/build/fsdp_train" --help > /dev/null 2>&1; then
        echo "SKIP portable: losses, $cc $march: this processor does not run it"
    else
        check "$cc $march" "$dir/build" 1 $MODELS
    fi
    rm -rf "$dir/build"
}

# Gets cJSON and xxHash of Debian's arm64 in a temporary folder; the machine's own packages stay as they are.
fetch_arm64_libraries() {
    echo "fetching cJSON and xxHash for arm64 into $dir; apt-get knows arm64 while that lasts"
    dpkg --print-foreign-architectures | grep -q arm64 || { dpkg --add-architecture arm64; added=1; }
    apt-get update -qq
    (cd "$dir" && apt-get download -qq libcjson1:arm64 libcjson-dev:arm64 \
        libxxhash0:arm64 libxxhash-dev:arm64)
    [ "${added:-0}" = 1 ] && dpkg --remove-architecture arm64 && apt-get update -qq
    for deb in "$dir"/lib*.deb; do
        dpkg-deb -x "$deb" "$dir/arm64"
    done
}

aarch64() {
    name="aarch64-linux-gnu-gcc under qemu-user"
    for tool in aarch64-linux-gnu-gcc qemu-aarch64; do
        command -v $tool > /dev/null && continue
        echo "SKIP portable: losses, $name: no $tool (make test-full installs it)"
        return
    done
    [ "${1:-}" = --fetch ] && fetch_arm64_libraries 2> "$log"
    if [ ! -e "$dir/arm64/usr/include/cjson/cJSON.h" ]; then
        echo "SKIP portable: losses, $name: no cJSON and xxHash for arm64 (tests/tools/portable_csv.sh --fetch, as root)"
        return
    fi
    lib=$dir/arm64/usr/lib/aarch64-linux-gnu
    if ! PKG_CONFIG_SYSROOT_DIR="$dir/arm64" PKG_CONFIG_LIBDIR="$lib/pkgconfig" make --no-print-directory "$jobs" BUILD="$dir/build" \
        CC=aarch64-linux-gnu-gcc CPPFLAGS="-I$dir/arm64/usr/include" \
        "$dir/build/fsdp_train" "$dir/build/fsdp_run" "$dir/build/fsdp_compare" > "$log" 2>&1; then
        verdict "losses, $name: the build" 1
        return
    fi
    mkdir "$dir/qemu"
    for program in fsdp_train fsdp_run fsdp_compare; do
        printf '#!/bin/sh\nexec qemu-aarch64 $PAGES -L /usr/aarch64-linux-gnu -E LD_LIBRARY_PATH=%s %s "$@"\n' "$lib" \
            "$dir/build/$program" > "$dir/qemu/$program"
        chmod +x "$dir/qemu/$program"
    done
    check "$name" "$dir/qemu" '1 2' $MODELS
    export PAGES='-p 65536'
    check "$name, pages of 64 KiB" "$dir/qemu" '1 2' tiny
}

for cc in gcc clang; do
    for march in x86-64 x86-64-v3 native; do
        native $cc $march
    done
done
aarch64 "${1:-}"
exit $bad
