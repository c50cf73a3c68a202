#!/bin/bash
# data.sh -- what users pass as --data: formats, masks, shards, and where a resumed run goes on reading.
. "$(dirname "$0")/lib.sh"
cli_start "$@"
fresh=1
tiny='--n-layer 1 --d-model 16 --n-head 2 --seq-len 16 --ops portable --reduction canonical --lr-schedule constant'

# pack TEMPLATE N -- N tokens in perl's pack
pack() { perl -e 'print pack("$ARGV[0]*", map { $_ * $_ * 7 % 251 + ($_ % 3) * 256 } 1 .. $ARGV[1])' "$1" "$2"; }
# header MAGIC VERSION N
header() { perl -e 'print pack("l<256", @ARGV)' "$@"; }
# losses FILE -- without times
losses() { cut -d, -f1-3 "$1"; }
# same_as FILE -- $new/loss.csv has these losses
same_as() { cmp -s <(losses "$new/loss.csv") <(losses "$1") || complain "losses differ from $1: $(losses "$new/loss.csv" | tr '\n' ' ')"; }

# ---- formats: the same tokens, however they are packed ----
pack 'S<' 900 >"$keep/narrow" && pack 'L<' 900 >"$keep/wide"
{ header 20240520 1 900; cat "$keep/narrow"; } >"$keep/gpt2.bin"
{ header 20240801 7 900; cat "$keep/wide"; } >"$keep/llama3.bin"
steps="$tiny --vocab-size 768 --global-batch 6 --steps 3 --loss-csv $new/loss.csv"
case_is 'shards of 16 bits'
good 1 $steps --data "$keep/gpt2.bin"
mv "$new/loss.csv" "$keep/tokens.csv"
for how in llama3.bin 'llama3.bin --data-format llmc' 'narrow --data-format uint16' 'wide --data-format uint32'; do
    for ranks in 1 2; do
        case_is "the same tokens from $how" $ranks
        good $ranks $steps --data $keep/$how --val-data $keep/$how
        same_as "$keep/tokens.csv"
    done
done
case_is 'packed tokens are not trained on as text'
fails 2 'wide: got a file that is no text, expected a text or llm.c.s shards' $steps --data "$keep/wide"
says 'HINT: .*--data-format uint16 or uint32' "$work/err"
fails 1 'wide: got a file that is no text' $steps --data LICENSE --val-data "$keep/wide"
fails 1 '--val-data: got bytes, expected tokens as in --data' $steps --data "$keep/gpt2.bin" --val-data LICENSE
case_is 'files of another kind are not taken for plain tokens'
for begin in '\223NUMPY\1' 'PK\3\4' '\37\213\10\0' '\50\265\57\375' '\3757zXZ\0' '\211HDF' 'PAR1'; do
    { printf '%b' "${begin//\\/\\0}" && cat "$keep/narrow"; } | head -c 800 >"$new/other"
    fails 1 'other: got a.* file.*, expected tokens of 16 bits' $steps --data "$new/other" --data-format uint16
    fails 1 'other: got a.* file.*, expected tokens of 32 bits' $steps --data "$keep/wide" --val-data "$new/other" --data-format uint32
done
head -c 1000 LICENSE >"$new/text"
fails 2 'text: got a text, expected tokens of 16 bits' $tiny --vocab-size 65536 --steps 1 --data "$new/text" --data-format uint16
says 'HINT: .*tofile' "$work/err"
case_is 'a format without data'
fails 1 '--data-format: expected --data PATH' $steps --data-format uint16
fails 1 'neither tokens nor a mask' --model mnist --data "$new" --data-format uint16

# ---- an imported model whose tokens are no bytes ----
good 1 $tiny --vocab-size 300 --steps 0 --export "$keep/words"
good 1 $tiny --steps 0 --export "$keep/bytes"
{ header 20240520 1 400; pack 'S<' 900 | perl -0777 -ne 'print pack "S<400", map { $_ % 300 } unpack "S<*", $_'; } >"$keep/small.bin"
for ranks in 1 2; do
    case_is 'a text for a model of 300 tokens' $ranks
    import="$tiny --steps 2 --global-batch 6 --init-from $keep/words"
    fails $ranks 'got a text, expected tokens of .*words, whose vocabulary has 300' $import --data LICENSE
    says 'HINT: make tokens as docs/models.md shows' "$work/err"
    fails $ranks '--data: got none, expected tokens of .*words' $import
    fails $ranks 'got a text, expected tokens of' $import --data "$keep/small.bin" --val-data LICENSE
    good $ranks $import --data LICENSE --data-format bytes
    good $ranks $import --synthetic 1000
    good $ranks $import --steps 0 --export "$new/copy$ranks" # reads no data to train on
    good $ranks $import --eval-only --val-data "$keep/small.bin"
    fails $ranks '--data: got none, expected tokens of .*words' $import --eval-only
    fails $ranks 'got a text, expected tokens of .*words' $import --eval-only --val-data LICENSE
done
case_is 'a text for a model of 256 tokens, without and with a tokenizer'
good 1 $tiny --steps 2 --init-from "$keep/bytes" --data LICENSE
cp -r "$keep/bytes" "$new/bpe" && echo '{}' >"$new/bpe/tokenizer.json"
fails 1 'got a text, expected tokens of .*bpe, whose vocabulary has 256' $tiny --steps 2 --init-from "$new/bpe" --data LICENSE
ends_with 1 "$build/fsdp_generate" "$new/bpe" --prompt "To be"
says "expected token numbers from 0 to 255" "$work/err"
ends_with 0 "$build/fsdp_generate" "$new/bpe" --prompt "84 111" --length 2

# ---- where a resumed run reads ----
# whole GLOBAL-BATCH STEPS SKIPPED -- losses of a run whose data begins SKIPPED sequences later: with a learning rate of 0 the loss of
# a step depends on its samples alone
still="$tiny --lr 0 --data LICENSE"
# goes_on OPTION... -- two steps after a run of three steps of 6 samples
goes_on() { good "${ranks:-1}" $still --global-batch 6 --steps 5 --resume "$keep/three" --loss-csv "$new/loss.csv" "$@"; }
# last N -- the losses of the last N steps
last() { tail -n "$1" "$new/loss.csv" | cut -d, -f2 | tr '\n' ' '; }
good 1 $still --global-batch 6 --steps 3 --save "$keep/three"
# reads FIRST GLOBAL-BATCH OPTION... -- a run that begins at byte FIRST has the same losses as the last two steps
reads() {
    local got
    got=$(last 2)
    tail -c +$(($1 + 1)) LICENSE >"$work/from"
    good 1 $still --global-batch "$2" "${@:3}" --steps 2 --data "$work/from" --loss-csv "$new/loss.csv"
    [ "$got" = "$(last 2)" ] || complain "losses $got, expected $(last 2) from byte $1 on"
}
for ranks in 1 2; do
    case_is 'the same global batch: after the 18 samples' $ranks
    goes_on
    grep -q '^note' "$work/err" && complain "a note: $(cat "$work/err")"
    reads $((18 * 16)) 6
    for global in 4 12; do
        case_is "a global batch of $global: after the 18 samples" $ranks
        goes_on --resume-change global-batch --global-batch $global
        grep -q '^note' "$work/err" && complain "a note: $(cat "$work/err")"
        reads $((18 * 16)) $global
    done
done
ranks=1
case_is 'changed twice: the samples of all three runs add up'
good 1 $still --global-batch 4 --steps 5 --resume "$keep/three" --resume-change global-batch --save "$new/five"
good 1 $still --global-batch 8 --steps 7 --resume "$new/five" --resume-change global-batch --loss-csv "$new/loss.csv"
reads $(((18 + 8) * 16)) 8
case_is 'another --seq-len: after the tokens that were read'
goes_on --resume-change seq-len --seq-len 12
says '^note: reading begins at sample 24 of LICENSE: --seq-len has changed' "$work/err" # 288 tokens
reads 288 6 --seq-len 12
case_is 'another --seq-len: a place that no token was read of'
goes_on --resume-change seq-len --seq-len 13
says '^note: reading begins at sample 23 of' "$work/err" # 23 x 13 = 299
reads 299 6 --seq-len 13
case_is 'other data: from their beginning'
head -c 600 README.md >"$new/other"
goes_on --resume-change data --data "$new/other"
says '^note: reading begins at sample 0 of .*other: the checkpoint was saved with other data' "$work/err"
got=$(last 2)
good 1 $still --global-batch 6 --steps 2 --data "$new/other" --loss-csv "$new/loss.csv"
[ "$got" = "$(last 2)" ] || complain "losses $got, expected $(last 2)"
case_is 'images in another order'
net='--model mnist --size tiny --synthetic 60 --global-batch 6 --steps'
good 1 $net 3 --save "$new/net"
good 1 $net 5 --resume "$new/net" --resume-change seed,schedule --seed 2
says '^note: reading begins at sample 18 of drawn digits.*: --seed has changed' "$work/err"
case_is 'a checkpoint that does not say how many samples were read'
cp -r "$keep/three" "$new/old"
"$build/tests/cli/old_manifest" "$new/old/step-3" || complain 'cannot be made'
grep -qE '"(samples|mtime_ns)":' "$new/old/step-3/manifest.json" && complain 'says how many'
good 1 $still --global-batch 9 --steps 5 --resume "$new/old" --resume-change global-batch --batch-size 1 --loss-csv "$new/loss.csv"
reads $((18 * 16)) 9 --batch-size 1
case_is 'what a manifest says of the data is covered by its hash'
for edit in 's/("samples":\s*)18/${1}12/' 's/("[mc]time_ns":\s*")./${1}f/' 's/("ctime_ns":\s*")./${1}f/' 's/("name":\s*"L)/${1}X/'; do
    rm -rf "$new/bad" && cp -r "$keep/three" "$new/bad" && perl -0777 -pi -e "$edit" "$new/bad/step-3/manifest.json"
    cmp -s "$keep/three/step-3/manifest.json" "$new/bad/step-3/manifest.json" && complain "nothing was edited: $edit"
    fails 1 'manifest.json is damaged' $still --global-batch 6 --steps 5 --resume "$new/bad"
done

# ---- shards ----
mkdir "$keep/shards"
for i in 1 2 3; do
    { header 20240520 1 300; pack 'S<' 900 | tail -c +$((600 * i - 599)) | head -c 600; } >"$keep/shards/$i.bin"
done
shards="$tiny --vocab-size 768 --global-batch 6 --loss-csv $new/loss.csv"
case_is 'what programs leave beside shards' 2
cp -r "$keep/shards" "$new/shards" && echo rubbish | tee "$new/shards/._1.bin" >"$new/shards/.2.bin.swp"
good 2 $shards --steps 3 --data "$new/shards"
same_as "$keep/tokens.csv"
case_is '1,100 shards with 1,024 open files' 2
mkdir "$new/many"
perl -e 'for (1 .. 1100) { open F, ">", sprintf("$ARGV[0]/%04d.bin", $_); print F pack("l<256", 20240520, 1, 20), pack("S<20", map { $_ * $_ % 251 } 1 .. 20) }' "$new/many"
(ulimit -n 1024 && good 2 $shards --steps 2 --data "$new/many" --vocab-size 256; exit $rc) || complain 'refused'

# swap FILE -- other tokens, but the length and time of before
swap() { touch -r "$1" "$work/time" && perl -0777 -pi -e 'substr($_, 1024, 20) = "\1\0" x 10' "$1" && touch -r "$work/time" "$1"; }
saved() { rm -rf "$new/save" && good "$1" $shards --steps 2 --data "$new/shards" --save "$new/save"; }
# changed_then_back -- other tokens in shard 2 are refused, the old ones are accepted
changed_then_back() {
    fails 1 'data: saved with 900 tokens, XXH3 .*, this run has 900 tokens' $shards --steps 4 --data "$new/shards" --resume "$new/save"
    cp -p "$keep/shards/2.bin" "$new/shards/2.bin"
    good 1 $shards --steps 4 --data "$new/shards" --resume "$new/save"
}
for ranks in 1 3; do
    case_is 'shards of an unchanged name, length and times are not read again' $ranks
    cp -rp "$keep/shards" "$new/shards"
    saved $ranks
    swap "$new/shards/3.bin" # if it were read, it would be found out
    "$build/tests/cli/old_manifest" "$new/save/step-2" "$new"/shards/[123].bin || complain 'cannot be made'
    good $ranks $shards --steps 4 --data "$new/shards" --resume "$new/save"
    case_is 'a shard of another time is read, and its tokens are the same' $ranks
    cp -rp "$keep/shards" "$new/shards"
    saved $ranks
    touch "$new/shards/2.bin"
    good $ranks $shards --steps 4 --data "$new/shards" --resume "$new/save"
    [ ! -s "$work/err" ] || complain "says: $(cat "$work/err")"
    case_is 'changed tokens are refused' $ranks
    cp -rp "$keep/shards" "$new/shards"
    saved $ranks
    swap "$new/shards/2.bin" && touch "$new/shards/2.bin"
    fails $ranks 'data: saved with 900 tokens, XXH3 .*, this run has 900 tokens' $shards --steps 4 --data "$new/shards" --resume "$new/save"
    says '^note: data: .*2.bin: got tokens with the hash .*, expected .* as in the checkpoint' "$work/err"
    good $ranks $shards --steps 4 --data "$new/shards" --resume "$new/save" --resume-change data
    says '^note: reading begins at sample 0' "$work/err"
done
case_is 'changed tokens in a file whose length and time were put back'
cp -rp "$keep/shards" "$new/shards"
saved 1
swap "$new/shards/2.bin"
fails 1 'data: saved with 900 tokens, XXH3 .*, this run has 900 tokens' $shards --steps 4 --data "$new/shards" --resume "$new/save"
says '^note: data: .*2.bin: got tokens with the hash .*, expected .* as in the checkpoint' "$work/err"
cp -p "$keep/shards/1.bin" "$new/shards/2.bin"
changed_then_back
case_is 'a checkpoint that does not say when its files were changed'
cp -rp "$keep/shards" "$new/shards"
saved 1
swap "$new/shards/2.bin"
"$build/tests/cli/old_manifest" "$new/save/step-2" 1 2 3 && perl -0777 -pi -e 's/"ctime_ns":\s*"0{16}",\s*//g' "$new/save/step-2/manifest.json"
grep -q ctime "$new/save/step-2/manifest.json" && complain 'it says when'
changed_then_back
case_is 'one more shard is refused, and so are bytes to evaluate on after a resume'
cp -rp "$keep/shards" "$new/shards"
saved 1
cp "$keep/shards/1.bin" "$new/shards/4.bin"
fails 1 'data: saved with 900 tokens, .*, this run has 1200 tokens' $shards --steps 4 --data "$new/shards" --resume "$new/save"
says '^note: data: .*shards: got 4 files, expected 3 as in the checkpoint' "$work/err"
rm "$new/shards/4.bin"
fails 1 '--val-data: got bytes, expected tokens as in --data' $shards --steps 4 --data "$new/shards" --resume "$new/save" --val-data LICENSE
case_is 'a text for a checkpoint whose data were tokens'
cp -rp "$keep/shards" "$new/shards"
saved 1
on="$shards --steps 4 --resume $new/save --resume-change data"
fails 1 'data: LICENSE: got a text, expected tokens of the checkpoint, whose vocabulary has 768' $on --data LICENSE
fails 2 '--data: got none, expected tokens of the checkpoint' $on
good 1 $on --data LICENSE --data-format bytes
good 1 $on --data "$keep/narrow" --data-format uint16
good 1 $on --synthetic 1000
case_is 'a rank that sees other shards than rank 0' 2
cp -r "$keep/shards" "$new/shards" && cp -r "$keep/shards" "$new/1"
perl -0777 -pi -e 'substr($_, 1024, 20) = "\1\0" x 10' "$new/1/2.bin"
cat >"$new/start" <<END
#!/bin/sh
case \$FSDP_RUN in 1*) cd "$new/1" ;; *) cd "$new/shards" ;; esac
exec "\$@"
END
chmod +x "$new/start"
timed $starts -n 2 "$new/start" "$trainer" $shards --steps 2 --data .
expect_status 1
says 'rank 1 failed: data: .*2.bin: got tokens with the hash .*, expected' "$work/err"

# ---- a mask of the loss ----
# mask BYTES... -- repeated to the length of LICENSE
mask() { perl -e 'my $n = shift; my $m = pack("C*", @ARGV); print substr($m x ($n / length($m) + 1), 0, $n)' "$(stat -c %s LICENSE)" "$@"; }
masked="$tiny --data LICENSE --global-batch 6 --batch-size 1 --steps 4 --loss-csv $new/loss.csv --data-mask"
case_is 'a mask of ones is no mask' 2
good 2 ${masked% *}
mv "$new/loss.csv" "$new/none.csv"
mask 1 255 2 >"$new/mask"
good 2 $masked "$new/mask"
same_as "$new/none.csv"
# samples of 16: the first keeps 16 targets, the second 1, the third none, ...: no two ranks have as many
perl -e 'my $n = -s "LICENSE"; my @keep = (16, 1, 0, 7, 3, 11); print "\1"; for my $i (0 .. $n - 2) { print pack "C", $i % 16 < $keep[$i / 16 % 6] }' >"$keep/mask"
case_is 'targets that differ from rank to rank'
good 1 $masked "$keep/mask" --parallel single --export "$keep/masked"
mv "$new/loss.csv" "$keep/masked.csv"
for how in '1' '2' '3' '2 --parallel ddp' '3 --sharding grad-op --no-sync' '2 --layout per-param --chunk-loss=4' '3 --device separate'; do
    case_is "the same bits: $how"
    good $how $masked "$keep/mask" --export "$new/weights"
    same_as "$keep/masked.csv"
    same_weights "$keep/masked" "$new/weights"
done
case_is 'micro-steps of other sizes'
for sizes in '1 6' '1 2' '3 2'; do
    good "${sizes% *}" ${masked/--batch-size 1/--batch-size ${sizes#* }} "$keep/mask" --reduction fast
    awk -F, 'NR == FNR { loss[$1] = $2; next } FNR > 1 && ($2 / loss[$1] - 1) ^ 2 > 1e-12 { exit 1 }' "$keep/masked.csv" "$new/loss.csv" ||
        complain "$sizes: $(losses "$new/loss.csv" | tr '\n' ' ')"
done
case_is 'the mean is over the targets that count: samples without any change nothing'
{ printf '\1'; perl -e 'print +("\1" x 16, "\0" x 16) x 1000' | head -c $(($(stat -c %s LICENSE) - 1)); } >"$new/mask"
good 1 $masked "$new/mask" --lr 0 --steps 1 --global-batch 2
got=$(last 1)
good 1 ${masked% *} --lr 0 --steps 1 --global-batch 1
[ "$got" = "$(last 1)" ] || complain "loss $got, expected $(last 1)"
case_is 'a step without a target that counts' 3
{ printf '\1'; perl -e 'print "\1" x (16 * 6 * 2), "\0" x (16 * 6), "\1" x 100000' | head -c $(($(stat -c %s LICENSE) - 1)); } >"$new/mask"
fails 3 'step 3: samples 12 to 17: got a mask in which no target counts, expected at least one' $masked "$new/mask"
case_is 'an evaluation with a mask, on any number of ranks'
for ranks in 1 2 3; do
    good $ranks $tiny --data LICENSE --val-data LICENSE --val-mask "$keep/mask" --global-batch 6 --batch-size 1 --eval-only --eval-batches 1
    loss=$(sed -n 's/^eval .* loss \([^ ]*\) .*/\1/p' "$work/out")
    [ "$loss" = "$(sed -n '2s/^0,\([^,]*\),.*/\1/p' "$keep/masked.csv")" ] || complain "W=$ranks: $loss"
done
mask 0 >"$new/mask"
fails 2 'evaluation: samples 0 to 66: got a mask in which no target counts' $tiny --data LICENSE --val-data LICENSE --val-mask "$new/mask" --global-batch 6 --eval-only
case_is 'a mask that does not fit'
mask 1 | head -c 100 >"$new/mask"
fails 2 "got a mask of 100 bytes, expected $(stat -c %s LICENSE), one for each token of LICENSE" $masked "$new/mask"
fails 1 '--data-mask: expected --data PATH' $tiny --data-mask "$keep/mask"
fails 1 '--val-mask: expected --val-data PATH' $tiny --val-mask "$keep/mask"
case_is 'a resumed run has the mask, or says that it may change'
good 1 $masked "$keep/mask" --save "$new/save"
fails 1 'mask: saved with 1.* XXH3 .*, this run has nothing' ${masked% *} --resume "$new/save" --steps 5
good 1 ${masked% *} --resume "$new/save" --steps 5 --resume-change mask
cli_end
