#!/bin/bash
# plugin_build.sh -- make cuda and make npu find toolkits in the layouts of other machines, and the plug-ins load.
#
# The toolkits are made up: nvcc is a script that calls $cxx, each library has one function, the headers are the stand-in's. The
# plug-in's sources are made up too: this tests where make looks, how it links, and what it says.
. "$(dirname "$0")/lib.sh"
cli_start "$@"
unset ${!CUDA_@} ${!NCCL_@} ${!ASCEND_@} ${!NVCC@} LD_LIBRARY_PATH LIBRARY_PATH CPATH PYTHONPATH MAKEFLAGS MFLAGS CC V CI
name='made-up toolkits'
cxx=$(command -v g++ || command -v clang++) || { skip "$name" 'there is no C++ compiler' && cli_end; }

# ---- made-up toolkits -------------------------------------------------------------------------------------------

# The plug-in adds up a number from each library: 11 + 200 + 3000.
cat >"$work/probe.c" <<'END'
#include <cublasLt.h>
#include <nccl.h>
int cuda_part(void), nccl_part(void), cublaslt_part(void), kernel_part(void);
int probe(void);
int probe(void)
{
    return NCCL_MAJOR - 2 + cuda_part() + cublaslt_part() + nccl_part() + kernel_part();
}
END
echo 'extern "C" int kernel_part(void) { return 0; }' >"$work/kernel.cu"
echo '#include <dlfcn.h>
#include <stdio.h>
int main(int n, char **v)
{
    void *object = dlopen(v[1], RTLD_NOW);
    int (*probe)(void) = object ? (int (*)(void))dlsym(object, "probe") : NULL;
    return n == 2 && probe && probe() == 3211 ? 0 : puts(object ? "it gives other numbers" : dlerror()) && 1;
}' | $cc -w -x c - -o "$work/load" -ldl || exit 1
mkdir "$work/parts"
library() { echo "int $1_part(void) { return $2; }" | $cc -shared -fPIC -x c - -o "$work/parts/$3" -Wl,-soname,"$3"; }
library cublaslt 200 libcublasLt.so.12 && library nccl 3000 libnccl.so.2 || exit 1
echo 'int cuda_part(void) { return 11; }' | $cc -c -fPIC -x c - -o "$work/cudart.o" && ar rc "$work/parts/libcudart_static.a" "$work/cudart.o"

# nvcc FILE RELEASE INCLUDE-FOLDER -- a script that accepts only g++-11, in any folder; it reports the folder above its own as TOP
nvcc() {
    mkdir -p "${1%/*}"
    sed "s|@release|$2|; s|@include|$3|; s|@cxx|$cxx|" >"$1" <<'END'
#!/bin/sh
here=$(cd "$(dirname "$0")" && pwd)
case "$*" in
*--version*) echo 'Cuda compilation tools, release @release, V@release.89' && exit ;;
*--list-gpu-arch*) printf 'compute_%s\n' 50 75 80 90 && exit ;;
*--dryrun*) printf '#$ _HERE_=%s\n#$ TOP=%s\n' "$here" "$here/.." >&2 && exit ;;
esac
compiler=gcc rest=''
while [ $# -gt 0 ]; do
    case $1 in
    -ccbin) compiler=$2 && shift ;;
    -gencode | -Xcompiler) shift ;;
    -arch* | -fmad* | -ftz* | -prec*) ;;
    *) rest="$rest $1" ;;
    esac
    shift
done
case $(command -v "$compiler") in *g++-11) ;; *) echo 'host_config.h: #error -- unsupported GNU version! gcc versions later than 11' >&2 && exit 1 ;; esac
case $rest in *' -E '*) exit ;; esac
exec @cxx -I@include -fPIC -D__CUDACC__ $(echo "$rest" | sed 's/ \([^ ]*\.cu\)$/ -x c++ \1/')
END
    chmod +x "$1"
}
: >"$work/bin/g++-11" && chmod +x "$work/bin/g++-11"
headers() { mkdir -p "$1" && cp tests/sim/cuda/include/{cuda,cublas}*.h "$1"; }
# cuda_into INCLUDE LIB -- as in real toolkits: a library name without a version, and a stub that only serves linking
cuda_into() {
    headers "$1" && mkdir -p "$2/stubs"
    cp "$work"/parts/lib{cudart_static.a,cublasLt.so.12} "$2" && ln -s libcublasLt.so.12 "$2/libcublasLt.so"
    : >"$2/stubs/libcublasLt.so"
}
nccl_into() { mkdir -p "$1" "$2" && cp tests/sim/cuda/include/nccl.h "$1" && cp "$work/parts/libnccl.so.2" "$2"; }

# ---- what it finds ----------------------------------------------------------------------------------------------

# cuda VARIABLE=VALUE... -- make cuda with the sources above
cuda() {
    rm -rf "$work/build"
    env PATH="$work/bin:/usr/bin:/bin" "$@" make --no-print-directory CC="$cc" BUILD="$work/build" CUDA_C="$work/probe.c" CUDA_CU="$work/kernel.cu" \
        cuda >"$work/err" 2>&1
}
# loads NAME VARIABLE=VALUE... -- without LD_LIBRARY_PATH
loads() {
    case_is "loads: $1"
    cuda "${@:2}" || complain 'it does not build'
    "$work/load" "$work/build/fsdp_cuda.so" >"$work/err" 2>&1 || complain 'it does not load'
}

lib64=$work/lib64
nvcc "$lib64/bin/nvcc" 12.4 "$lib64/include"
cuda_into "$lib64/include" "$lib64/lib64" && nccl_into "$lib64/include" "$lib64/lib64"
ln -s libnccl.so.2 "$lib64/lib64/libnccl.so"
loads 'a toolkit with lib64, NCCL in it' CUDA_HOME="$lib64"

lib=$work/lib
nvcc "$lib/bin/nvcc" 12.4 "$lib/include"
cuda_into "$lib/include" "$lib/lib"
wheel=$work/site/nvidia/nccl
nccl_into "$wheel/include" "$wheel/lib"
loads 'a toolkit with lib, NCCL of a wheel, which has libnccl.so.2 alone' CUDA_HOME="$lib" NCCL_HOME="$wheel"
nccl_there=$(ls /usr/include/nccl.h /usr/local/include/nccl.h 2>/dev/null)
if [ -n "$nccl_there" ]; then
    skip 'loads: a wheel that python3 knows' "this machine has $nccl_there"
elif ! command -v python3 >/dev/null; then
    skip 'loads: a wheel that python3 knows' 'there is no python3'
else
    loads 'a wheel that python3 knows' CUDA_HOME="$lib" PYTHONPATH="$work/site"
fi

targets=$work/targets
nvcc "$targets/bin/nvcc" 12.4 "$targets/targets/x86_64-linux/include"
cuda_into "$targets/targets/x86_64-linux/include" "$targets/targets/x86_64-linux/lib"
loads 'a toolkit with targets/ alone' CUDA_HOME="$targets" NCCL_HOME="$wheel"

printf '#!/bin/sh\nexec %s "$@"\n' "$lib64/bin/nvcc" >"$work/bin/nvcc" && chmod +x "$work/bin/nvcc"
loads 'an nvcc on the PATH that is a script' NO=

debian=$work/debian/usr
nvcc "$debian/lib/nvidia-cuda-toolkit/bin/nvcc" 11.8 "$debian/include"
cuda_into "$debian/include" "$debian/lib/x86_64-linux-gnu" && nccl_into "$debian/include" "$debian/lib/x86_64-linux-gnu"
sed -i "s|TOP=%s.n' \"\$here\" \"\$here/..\"|LIBRARIES=  -L%s/stubs -L%s\\\\n' \"\$here\" $debian/lib/x86_64-linux-gnu $debian/lib/x86_64-linux-gnu|" \
    "$debian/lib/nvidia-cuda-toolkit/bin/nvcc"
printf '#!/bin/sh\nexec %s "$@"\n' "$debian/lib/nvidia-cuda-toolkit/bin/nvcc" >"$work/bin/nvcc"
loads "Debian's folders" NO=
rm "$work/bin/nvcc"

cu13=$work/site/nvidia/cu13
nvcc "$cu13/bin/nvcc" 13.0 "$cu13/include"
cuda_into "$cu13/include" "$cu13/lib" && rm "$cu13/lib/libcublasLt.so"
loads 'wheels for all' CUDA_HOME="$cu13" NCCL_HOME="$wheel"

# ---- what it says -----------------------------------------------------------------------------------------------

# refused NAME REGEX HINT VARIABLE=VALUE...
refused() {
    case_is "refused: $1"
    cuda "${@:4}" && complain 'it builds'
    [ "$(grep -cE -- "^make cuda: .*$2" "$work/err")" = 1 ] || complain "no line '$2'"
    says "^HINT: .*$3"
}
refused 'no toolkit' "no nvcc: '/nowhere/bin/nvcc'" CUDA_HOME CUDA_HOME=/nowhere
nvcc "$work/old/bin/nvcc" 11.7 "$work"
refused 'an older toolkit' 'is of CUDA 11.7; the oldest that will do is 11.8' CUDA_HOME CUDA_HOME="$work/old"
refused 'no NCCL' "no nccl.h in NCCL_HOME=$work/none" 'NCCL 2.18 or newer' CUDA_HOME="$lib" NCCL_HOME="$work/none"
nccl_into "$work/nccl/include" "$work/nccl/lib"
rm "$work/nccl/lib/libnccl.so.2"
refused 'NCCL without its library' 'no libnccl.so in' NCCL_HOME CUDA_HOME="$lib" NCCL_HOME="$work/nccl"
sed -i 's/\(NCCL_MINOR *\).*/\116/' "$work/nccl/include/nccl.h"
refused 'an older NCCL' 'nccl.h is of NCCL 2.16.*; the oldest that will do is 2.18' NCCL_HOME CUDA_HOME="$lib" NCCL_HOME="$work/nccl"
refused 'a GPU that nvcc does not know' 'CUDA_ARCHS has 120, but nvcc of CUDA 12.4 makes code for 50 75 80 90' 'newer GPUs run' \
    CUDA_HOME="$lib64" CUDA_ARCHS=120
rm "$lib/lib/libcublasLt.so"*
refused 'no cuBLASLt' "no libcublasLt.so in CUDA 12.4: .*$lib/lib" CUDA_HOME CUDA_HOME="$lib" NCCL_HOME="$wheel"
rm "$work/bin/g++-11"
if ! command -v g++-11 >/dev/null; then
    refused 'no g++ that nvcc takes' 'does not work with g\+\+: .*later than 11' NVCC_CCBIN CUDA_HOME="$lib64"
fi

# ---- make npu ---------------------------------------------------------------------------------------------------

case_is "loads: CANN's libraries"
cann=$work/cann
mkdir -p "$cann/include/acl" "$cann/lib64" && : >"$cann/include/acl/acl.h"
echo 'int cann_part(void) { return 3211; }' | $cc -shared -fPIC -x c - -o "$cann/lib64/libascendcl.so" -Wl,-soname,libascendcl.so
echo 'int cann_part(void); int probe(void); int probe(void) { return cann_part(); }' >"$work/npu.c"
rm -rf "$work/build"
make --no-print-directory CC="$cc" BUILD="$work/build" NPU_SRC="$work/npu.c" ASCEND_TOOLKIT_HOME="$cann" npu >"$work/err" 2>&1 ||
    complain 'it does not build'
"$work/load" "$work/build/fsdp_npu.so" >"$work/err" 2>&1 || complain 'it does not load'

# ---- libraries for a machine without Debian's packages ------------------------------------------------------------

# Links the objects of BUILD with the pack's libraries, into another folder.
case_is 'a program that is linked with gpu-pack has its libraries'
CC=$cc tests/gpu/pack.sh "$work" >"$work/err" 2>&1 || complain 'no pack'
pack=$work/gpu-pack
link=$(env PKG_CONFIG_PATH="$pack/lib/pkgconfig" make -n V=1 --no-print-directory CC="$cc" BUILD="$build" "$build/tests/unit/test_checkpoint" |
    tr '\n' ' ' | sed 's/\\ / /g' | grep -o "[^;]* -o $build/tests/unit/test_checkpoint .*" | sed "s|.*\($cc [^;]* \)-o $build/tests/unit/test_checkpoint |\1-o $work/test_checkpoint |")
eval "$link" >>"$work/err" 2>&1 || complain 'it does not link'
for library in cjson xxhash cmocka; do
    ldd "$work/test_checkpoint" | grep -q "lib$library.*=> $pack/" || complain "no lib$library of the pack"
done
cli_end
