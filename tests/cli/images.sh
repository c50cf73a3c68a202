#!/bin/bash
# images.sh -- files in MNIST's format (IDX) as training data. Files of drawn digits give the losses of the same digits drawn by
# the trainer. Invalid files are refused with one message for any number of ranks.
. "$(dirname "$0")/lib.sh"
cli_start "$@"
net=(--model mnist --size tiny --global-batch 12 --reduction canonical --steps 12 --optimizer adadelta --lr 1 --warmup-steps 0
    --clip-grad 0)
images=train-images-idx3-ubyte labels=train-labels-idx1-ubyte

# ---- the same images --------------------------------------------------------------------------------------------

mkdir "$work/files" "$work/bad"
"$build/tests/cli/idx_files" "$work/files" train 0 100 && "$build/tests/cli/idx_files" "$work/files" t10k $((1 << 40)) 48 || exit 1

# train RANKS NAME OPTION... -- appends the printed losses, weights and evaluation
train() {
    launch "$1" "${net[@]}" --loss-csv "$work/csv" --export "$work/$2" --eval-batches 4 "${@:3}"
    [ "$rc" = 0 ] || complain "$2: exit status $rc"
    losses "$work/csv" >"$work/$2.says"
    sed -n 's/^.*eval  step //p' "$work/out" >>"$work/$2.says"
}
case_is 'files of drawn digits give the losses, weights and accuracy of the digits, over an epoch and a half (W=1, 2, 3)'
train 1 drawn --synthetic 100 --val-data digits
for ranks in 1 2 3; do
    train "$ranks" files --data "$work/files" --val-data "$work/files"
    grep -q "^data: $work/files, 100 images; a step is 12 images" <(sed 's/^\[0] //' "$work/out") || complain "no word of the files: $(grep data: "$work/out")"
    cmp "$work/drawn.says" "$work/files.says" >"$work/err" || complain "W=$ranks: other losses"
    cmp "$work/drawn/model.safetensors" "$work/files/model.safetensors" >"$work/err" || complain "W=$ranks: other weights"
done
[ "$(grep -c . "$work/drawn.says")" = 14 ] || complain "expected 12 losses and an accuracy, got $(cat "$work/drawn.says")"

# ---- files that are wrong ---------------------------------------------------------------------------------------

# bytes BEGIN BYTES FILE -- overwrites bytes of a file in $work/bad; BYTES has printf's escapes
bytes() {
    printf "$2" | dd of="$work/bad/$3" bs=1 seek="$1" conv=notrunc status=none
}

# wrong W NAME REGEX [OPTION...] -- W ranks refuse the files in $work/bad, or those in the options. Then restores the files
run="${net[*]} --data $work/bad --export $work/none"
wrong() {
    refused "$1" "$2" "data: .*$3" "pass a folder with MNIST's files, unpacked .gunzip. if .* for drawn digits leave --data out" "${@:4}" || return
    [ "$(grep -vcE 'data: |^HINT: |^\[fsdp_run]' "$work/err")" = 0 ] || complain 'more words'
    [ ! -e "$work/none" ] || complain 'something was exported'
    cp "$work/files"/* "$work/bad"
}
cp "$work/files"/* "$work/bad"
bytes 0 '\0\0\015\003' $images
wrong 2 'images of floats' "/$images: got 78416 bytes that begin 00000d03, expected at least 16 that begin 00000803: unsigned bytes in 3 dimensions"
cp "$work/bad/$labels" "$work/bad/$images"
wrong 3 'labels in place of images' "/$images: got 108 bytes that begin 00000801, expected at least 16 that begin 00000803"
cp "$work/bad/$images" "$work/bad/$labels"
wrong 1 'images in place of labels' "/$labels: got 78416 bytes that begin 00000803, expected at least 8 that begin 00000801: unsigned bytes in 1 dimension"
bytes 8 '\0\0\0\040\0\0\0\040' $images
wrong 1 'images of another size' "/$images: got images of 32 x 32, expected 28 x 28"
bytes 15 '\033' $images
wrong 2 'images that are not square' "/$images: got images of 28 x 27, expected 28 x 28"
bytes 107 '\012' $labels
wrong 3 'the last label is not a digit' "/$labels: label 99: got 10, expected 0 to 9"
head -c 107 "$work/files/$labels" >"$work/bad/$labels" && bytes 7 '\143' $labels
wrong 1 'one label too few' "/$labels: got 99 labels, expected 100"
truncate -s -1 "$work/bad/$images"
wrong 1 'images that are cut off' "/$images: got 78415 bytes, expected 78416 for the 100 images that its header has"
truncate -s +1 "$work/bad/$labels"
wrong 2 'labels with a byte more' "/$labels: got 109 bytes, expected 108 for the 100 labels that its header has"
truncate -s 9 "$work/bad/$images"
wrong 3 'images that end in their header' "/$images: got 9 bytes that begin 00000803, expected at least 16 that begin"
bytes 4 '\377\377\377\377' $images
wrong 1 'four billion images' "/$images: got 78416 bytes, expected 3367254359296 for the 4294967295 images that its header has, 1 to 1073741824 of them after the header"
truncate -s 8 "$work/bad/$labels" && truncate -s 16 "$work/bad/$images" && bytes 4 '\0\0\0\0' $images && bytes 4 '\0\0\0\0' $labels
wrong 1 'no images' "/$images: got 16 bytes, expected 16 for the 0 images that its header has, 1 to 1073741824"
if grep -q FSDP_HAVE_ZLIB "$build/flags"; then
    gzip -nc "$work/files/$images" | head -c 3000 >"$work/bad/$images"
    wrong 2 'packed images that are cut off' "/$images: the packed file is damaged"
else
    gzip -nc "$work/files/$images" >"$work/bad/$images"
    wrong 2 'images that are packed' "/$images: got [0-9]* bytes that begin 1f8b0800, expected at least 16 that begin 00000803"
fi
rm "$work/bad/$images.gz" "$work/bad/$labels"
wrong 1 'no labels' "/$labels: No such file"
wrong 1 'a file in place of a folder' 'LICENSE/train-images-idx3-ubyte: Not a directory' --data LICENSE
bytes 8 '\013' t10k-labels-idx1-ubyte
wrong 2 'a label of the test set' '/t10k-labels-idx1-ubyte: label 0: got 11, expected 0 to 9' --val-data "$work/bad"
rm "$work/bad/t10k-images-idx3-ubyte"
wrong 3 'no test set' '/t10k-images-idx3-ubyte: No such file' --val-data "$work/bad"
cli_end
