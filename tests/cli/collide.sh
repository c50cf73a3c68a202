#!/bin/bash
# collide.sh -- outputs that are inputs of the run, or other outputs: refused before anything is opened.
. "$(dirname "$0")/lib.sh"
cli_start "$@"
fresh=1
tiny='--n-layer 1 --d-model 16 --n-head 2 --seq-len 16 --ops portable --steps 2'
shard() { perl -e 'print pack("l<256", 20240520, 1, 200), pack("S<200", map { $_ * $_ % 251 } 1 .. 200)'; }
good 1 $tiny --data LICENSE --save "$keep/saved" --export "$keep/model" --optimizer adamw --profile "$keep/profile" || exit 1
cp LICENSE "$keep/text" && mkdir "$keep/shards" && shard >"$keep/shards/a.bin" && shard >"$keep/shards/b.bin"
cp -rp "$keep" "$work/kept"

# collides OTHER HOW OPTION... -- the last of the options is refused because OTHER reads or writes (HOW) the same; nothing has changed
collides() {
    launch "${ranks:-1}" $tiny "${@:3}"
    expect_status 1
    says "--[a-z-]* .*: got what --$1 $2: /" "$work/err"
    says '^HINT: pass another path to --' "$work/err"
    diff -r "$keep" "$work/kept" >/dev/null || complain "changed: $(diff -rq "$keep" "$work/kept")"
}

# ---- every output option with every option of a path ----
files='loss-csv export-optimizer digests snapshot memory-report' folders='save profile export-init export'
reads='data val-data data-mask val-mask init-from resume'
case_is 'the lists below have every option of --help that takes a path'
"$build/fsdp_train" --help | sed -n 's/^  --\([a-z-]*\)=\(FILE\|DIR\|PATH\|DIR|auto\)\( .*\)\{0,1\}$/\1/p' | sort >"$work/out"
printf '%s\n' plan-prices $files $folders $reads | sort | diff - "$work/out" >"$work/err" || complain "the lists differ: $(cat "$work/err")"
needs() {
    case $1 in
    data-mask) echo "--data LICENSE" ;;
    val-mask) echo "--val-data LICENSE" ;;
    esac
}
for out in $files; do
    case_is "--$out on a file of the other options"
    for other in $files $reads; do
        [ "$other" != "$out" ] && [ "$other" != init-from ] && [ "$other" != resume ] || continue
        verb=writes path=$new/file
        [[ " $reads " != *" $other "* ]] || { verb=reads path=$keep/text; }
        if [[ " $files " = *" $other "* ]]; then
            launch 1 $tiny --"$other" "$path" --"$out" "$path"
            expect_status 1
            says "--[a-z-]* .*: got what --[a-z-]* $verb: /" "$work/err"
            [ ! -e "$path" ] || complain "$path was written"
        else
            collides "$other" "$verb" $(needs "$other") --"$other" "$path" --"$out" "$path"
        fi
    done
    mkdir -p "$new/none" "$new/save"
    for file in config.json model.safetensors; do
        collides init-from reads --init-from "$keep/model" --"$out" "$keep/model/$file"
        for other in export export-init; do
            launch 1 $tiny --"$other" "$new/none" --"$out" "$new/none/$file"
            expect_status 1
            says "got what --$other writes|got what --$out writes" "$work/err"
        done
    done
    collides resume reads --resume "$keep/saved" --"$out" "$keep/saved/step-2/manifest.json"
    collides data reads --data "$keep/shards" --"$out" "$keep/shards/b.bin"
    collides data reads --data "$keep/shards/*.bin" --"$out" "$keep/shards/a.bin"
    launch 1 $tiny --save "$new/save" --"$out" "$new/save/latest"
    expect_status 1
done
case_is 'a model that is exported over itself'
for out in export export-init; do
    collides init-from reads --init-from "$keep/model" --"$out" "$keep/model"
    collides init-from reads --init-from "$keep/model" --"$out" "$keep/../keep/model/"
done
collides export-init writes --export-init "$new/e" --export "$new/e"
case_is 'an export into a checkpoint that may be removed'
mkdir "$new/s"
launch 1 $tiny --save "$new/s" --export "$new/s/step-4"
expect_status 1
says 'got what --save writes' "$work/err"
case_is 'one path as a file and as a folder, and a new file in a folder of data'
launch 1 $tiny --loss-csv "$new/x" --save "$new/x"
expect_status 1
says 'got what --save writes' "$work/err"
mkdir "$new/t" && cp LICENSE "$new/t/a"
for format in bytes uint16; do
    launch 1 $tiny --data "$new/t" --data-format $format --loss-csv "$new/t/loss.csv"
    expect_status 1
    says 'got what --data reads' "$work/err"
done

# ---- other names of a file ----
case_is 'links, hard links, other ways, names that do not exist yet' 2
ln -s "$keep/text" "$new/link" && ln "$keep/text" "$new/hard" && ln -s "$keep" "$new/way" && ln -s "$new/later" "$new/dangling"
ranks=2
for path in "$new/link" "$new/hard" "$new/way/text" "$keep/shards/../text" "$(realpath --relative-to=. "$keep/text")"; do
    collides data reads --data "$keep/text" --loss-csv "$path"
done
ranks=1
for path in "$new/later" "$new/./later" "$new/way/../new/later" "$new/dangling"; do
    launch 1 $tiny --loss-csv "$new/later" --digests "$path"
    expect_status 1
    says 'got what --loss-csv writes' "$work/err"
done
mkdir "$new/export" && ln -s "$keep/model/config.json" "$new/export/config.json"
collides init-from reads --init-from "$keep/model" --export "$new/export"
mkdir "$new/links" && ln -s "$keep/text" "$new/links/t.bin"
collides data reads --data "$new/links" --memory-report "$keep/text"

case_is 'what an export takes over from --init-from'
cp -r "$keep/model" "$new/from" && echo '# a model' >"$new/from/README.md" && mkdir "$new/to" && cp LICENSE "$new/to/README.md"
from="--init-from $new/from --seq-len 16"
launch 1 $tiny $from --data "$new/to/README.md" --export "$new/to"
expect_status 1
says 'got what --data reads: .*to/README.md' "$work/err"
cmp LICENSE "$new/to/README.md" || complain 'the data are gone'
launch 1 $tiny $from --data LICENSE --export "$new/to" --loss-csv "$new/to/README.md"
expect_status 1
says 'got what --loss-csv writes: .*to/README.md' "$work/err"
launch 1 $tiny $from --data LICENSE --export "$new/other" --loss-csv "$new/from/README.md"
expect_status 1
says 'got what --init-from reads: .*from/README.md' "$work/err"
good 1 $tiny $from --data LICENSE --loss-csv "$new/from/loss.csv"
good 1 $tiny $from --data LICENSE --export "$new/from/tuned"
case_is 'weights of any name'
cp -r "$keep/model" "$new/from" && mv "$new/from/model.safetensors" "$new/from/any name.safetensors"
perl -e 'open F, "<", $ARGV[0]; read F, $n, 8; read F, $h, unpack "Q<", $n; @t = grep { $_ ne "__metadata__" } $h =~ /"([^"]*)":\s*\{/g;
    print "{\"weight_map\": {", join(", ", map { "\"$_\": \"any name.safetensors\"" } @t), "}}"' "$new/from/any name.safetensors" >"$new/from/model.safetensors.index.json"
good 1 $tiny --init-from "$new/from" --data LICENSE
launch 1 $tiny --init-from "$new/from" --data LICENSE --loss-csv "$new/from/any name.safetensors"
expect_status 1
says 'got what --init-from reads' "$work/err"
case_is 'images in the folders of torchvision, through a link'
mkdir -p "$new/real/MNIST/raw" "$new/way" && ln -s ../real/MNIST "$new/way/MNIST"
"$build/tests/cli/idx_files" "$new/real/MNIST/raw" train 0 20
good 1 --model mnist --size tiny --steps 1 --data "$new/way"
launch 1 --model mnist --size tiny --steps 1 --data "$new/way" --loss-csv "$new/real/MNIST/raw/train-labels-idx1-ubyte"
expect_status 1
says 'got what --data reads' "$work/err"

# ---- what is legal ----
case_is 'outputs below a folder of texts, and hidden ones'
mkdir -p "$new/texts/sub" && cp LICENSE "$new/texts/a"
good 1 $tiny --data "$new/texts" --data-format bytes --save "$new/texts/sub/ck" --loss-csv "$new/texts/.loss.csv"
good 1 $tiny --data "$new/texts" --data-format bytes --profile "$new/texts/sub" --export "$new/texts/model"
case_is 'everything in one folder, again and again' 2
all="--save $new/d --profile $new/d --export $new/d --export-optimizer $new/d/optimizer.safetensors --digests $new/d/digests
    --memory-report $new/d/report.csv --snapshot $new/d/snapshot.html --loss-csv $new/d/loss.csv"
mkdir "$new/d"
good 2 $tiny --data LICENSE $all
good 2 $tiny --data LICENSE $all --resume auto
good 2 $tiny --data LICENSE $all --resume "$new/d" --steps 3 --resume-change schedule
good 2 $tiny --data LICENSE $all --resume "$new/d/step-3" --steps 4 --resume-change schedule
case_is 'outputs beside inputs'
cp -r "$keep/shards" "$new/shards"
good 1 $tiny --data "$new/shards" --val-data "$new/shards" --loss-csv "$new/shards/loss.csv" --export "$new/shards/model" --save "$new/shards"
case_is 'one device or pipe for several outputs'
good 1 $tiny --data LICENSE --loss-csv /dev/null --digests /dev/null --memory-report /dev/null
cli_end
