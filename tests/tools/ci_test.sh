#!/bin/sh
# ci_test.sh -- .ci/run adds up what make test counts on the CPU and on a device; a stand-in for make provides the counts.
set -u
cd "$(dirname "$0")/../.." || exit 2
. tests/tools/test_lib.sh
begin .ci/run
mkdir -p "$dir/bin" "$dir/build/test" "$dir/build/tests/equivalence"

# A line of totals, as test.sh writes it; "none": make ends before; "no device": what on_device.sh writes in that case.
cat >"$dir/bin/make" <<'EOF'
#!/bin/sh
case $* in
*DEVICE=*) totals=$ON_DEVICE out=$BUILD/test/separate && mkdir -p "$out" ;;
*) totals=$ON_CPU out=$BUILD/test ;;
esac
case $totals in
'no device') exec tests/tools/on_device.sh separate "$BUILD" ;;
none) exit 2 ;;
*) echo "$totals" >"$out/totals" ;;
esac
[ "${totals#* passed, 0 failed}" != "$totals" ]
EOF
printf '#!/bin/sh\necho "SKIP separate: not here"\nexit 77\n' >"$dir/build/tests/equivalence/equivalence"
chmod +x "$dir/bin/make" "$dir/build/tests/equivalence/equivalence"

# adds_up ON_CPU ON_DEVICE LAST STATUS -- .ci/run ends with line LAST and STATUS. It adds the CPU, one device and a skip for lack
# of nvcc
adds_up() {
    NVCC='' DEVICES=separate ON_CPU=$1 ON_DEVICE=$2 PATH="$dir/bin:$PATH" BUILD="$dir/build" .ci/run >"$log" 2>&1
    status=$?
    [ "$(tail -1 "$log")" = "$3" ] && [ $status -eq "$4" ]
    verdict "\"$1\" and \"$2\": status $status, expected $4 and the last line \"$3\"" $?
}
adds_up '10 passed, 0 failed' '4 passed, 0 failed, 1 skipped' '14 passed, 0 failed, 2 skipped' 0
adds_up '10 passed, 0 failed, 2 skipped' 'no device' '10 passed, 0 failed, 4 skipped' 0
adds_up '10 passed, 1 failed' '4 passed, 0 failed' '14 passed, 1 failed, 1 skipped' 1
adds_up '10 passed, 0 failed' '4 passed, 3 failed' '14 passed, 3 failed, 1 skipped' 1
adds_up '10 passed, 0 failed' none '10 passed, 1 failed, 1 skipped' 1
adds_up none '4 passed, 0 failed' '4 passed, 1 failed, 1 skipped' 1
exit $bad
