#!/bin/bash
# snapshot.sh -- what --snapshot writes: peaks equal to the ledgers' for device and host, the CSV's rows in the page, the page
# of a plan, and the memory that a pool reserves. An unwritable file leaves nothing.
. "$(dirname "$0")/lib.sh"
cli_start "$@"
model='--n-layer 3 --d-model 32 --n-head 2 --vocab-size 300 --seq-len 16 --batch-size 2'
run="$model --synthetic 5000 --steps 3 --reduction canonical"

# peaks CSV -- peaks of each category of device memory, of their total and of host memory, named as in --memory-report. "short":
# after how many calls less is reserved than allocated; "wrong": the number of invalid rows
peaks() {
    awk -F, 'NR > 1 {
            n++; kind[n] = $2; bytes[n] = $6; birth[n] = $7 < 0 ? 0 : $7; death[n] = $8 == "" ? 1e9 : $8; pool[n] = $9; where[n] = $10
            if ($8 != "" && $8 <= $7 || $8 != "" && $8 < 1 || $7 > 0 && $7 <= before || NF != 10 || $10 !~ /^(device|host)$/ || $10 == "host" && $9) wrong++
            if ($7 > 0) before = $7
            if ($7 > last) last = $7
            if ($8 > last) last = $8
        }
        END {
            for (call = 0; call <= last; call++) {
                split("", now); reserved = 0
                for (i = 1; i <= n; i++) {
                    if (birth[i] <= call && where[i] == "device") reserved = pool[i]
                    if (birth[i] > call || call >= death[i]) continue
                    if (where[i] == "host") now["host"] += bytes[i]
                    else { now[kind[i]] += bytes[i]; now["total"] += bytes[i] }
                }
                for (k in now) if (now[k] > most[k]) most[k] = now[k]
                if (reserved < now["total"]) short++
            }
            for (k in most) printf "%s %.0f\n", k, most[k] | "sort"
            close("sort")
            print "short", short + 0; print "wrong", wrong + 0
        }' "$1"
}
# of_ledger REPORT [COLUMN] -- the ledgers' peaks, as issued; COLUMN 5: as planned
of_ledger() { awk -F, -v column="${2:-4}" '$1 == "memory" && $column > 0 { print $2, $column }' "$1" | sort; }
# of_blocks CSV -- the peaks of the blocks, without "short" and "wrong"
of_blocks() { peaks "$1" | grep -vE '^(short|wrong)'; }

# agrees RANKS OPTION...
agrees() {
    case_is "the blocks' peaks are the ledger's, to the byte: W=$*"
    good "$@" --memory-report "$work/report.csv" --snapshot "$work/run.csv"
    peaks "$work/run.csv" >"$work/peaks"
    diff <(of_ledger "$work/report.csv") <(of_blocks "$work/run.csv") >"$work/err" || complain 'ledger <, snapshot >'
    grep -qx 'wrong 0' "$work/peaks" || complain 'a death before its birth, or births out of order'
}
agrees 1 $run --parallel single
agrees 2 $run --grad-accum 2 --sharding grad-op
agrees 3 $run --gradient-checkpointing
for device in separate cuda-sim; do
    [ $device != cuda-sim ] || [ -e "$BUILD/fsdp_cuda_sim.so" ] || { skip "--device $device" 'no plug-in'; continue; }
    ln -sf "$PWD/$BUILD/fsdp_cuda_sim.so" "$work/bin/"
    agrees 2 $run --device $device
    case_is "the pool of $device has reserved what is allocated, or more"
    grep -qx 'short 0' "$work/peaks" || complain "$(tail -2 "$work/peaks")"
done

# host memory: different amounts, with and without gradients; and what shm+staged takes for one call
for offload in --cpu-offload '--cpu-offload --grad-accum 2' --optimizer-offload; do
    agrees 2 $run --device separate $offload
    grep -q '^host ' "$work/peaks" || complain 'nothing on the host'
    case_is "planned: the peaks of the blocks equal the plan's, on the device and on the host: $offload"
    good 1 $model --reduction canonical --device separate $offload --plan --plan-ranks 2 --snapshot "$work/plan.csv"
    diff <(of_ledger "$work/report.csv" 5) <(of_blocks "$work/plan.csv") >"$work/err" || complain 'plan <, snapshot >'
    grep -qx "  on the host *$(sed -n 's/^host //p' "$work/peaks") .*" "$work/out" || complain "$(grep 'on the host' "$work/out")"
    for row in exp_avg,optimizer,h.1 exp_avg_sq,optimizer,root; do
        grep -q "^$row,.*,0,host$" "$work/plan.csv" || complain "no row '$row' on the host"
    done
done

case_is 'the page has the rows of the CSV, and the losses keep their bits'
good 3 $run --snapshot "$work/run.csv" --loss-csv "$work/with.csv"
good 3 $run --snapshot "$work/run.html" --profile "$work/profile"
good 3 $run --loss-csv "$work/without.csv"
sed -n '/^<script id="rows"/,/^<.script>/p' "$work/run.html" | sed '1d;$d' | cmp - "$work/run.csv" >"$work/err" || complain 'other rows'
same_losses "$work/with.csv" "$work/without.csv"
! grep -qE '(src|href)="?http|@import|url\(' "$work/run.html" || complain 'the page needs the network'

case_is 'a block has the name of its unit, and what the step found is older than the step'
for row in 'parameter shard,params_shard,h.1,,' 'exp_avg_sq,optimizer,h.2,,' 'gathered unit,params_full,h.2,forward,gather' \
    'unit gradient,grads_full,h.0,backward,compute' 'saved,activations,h.1.attn,,'; do
    grep -q "^$row" "$work/run.csv" || complain "no row '$row'"
done
grep '^parameter shard' "$work/run.csv" | awk -F, '$7 > 0 || $8 != "" { bad = 1 } END { exit bad }' || complain 'a shard is of the step'

case_is 'the page of a plan is the page of the run'
good 1 $model --reduction canonical --plan --plan-ranks 3 --snapshot "$work/plan.html"
cmp "$work/plan.html" "$work/run.html" >"$work/err" || complain 'another page'

case_is '70B parameters on 128 ranks: the planned total, in a small page'
shape='--size 1558m --n-layer 80 --d-model 8192 --n-head 64 --plan-ranks 128'
good 1 --plan $shape --snapshot "$work/70b.csv"
total=$(awk '$1 == "at" { print $4 }' "$work/out")
peaks "$work/70b.csv" | grep -qx "total $total" || complain "not $total: $(peaks "$work/70b.csv")"
good 1 --plan $shape --grad-accum 64 --gradient-checkpointing --snapshot "$work/70b.html"
[ "$(wc -c <"$work/70b.html")" -lt 3000000 ] || complain "$(wc -c <"$work/70b.html") bytes"

case_is 'a resumed run shows its last step'
good 2 $run --stop-after 2 --save "$work/saved"
good 2 $run --resume "$work/saved" --snapshot "$work/resumed.csv"
grep -q '^parameter shard,params_shard,h.1,,compute,[0-9]*,-[0-9]*,,' "$work/resumed.csv" || complain 'no shard older than the step'

refused 1 'a page that cannot be written at the end: named, and the checkpoint stays' 'cannot write /dev/full' '' --save "$new/kept" \
    --snapshot /dev/full
[ "$(saved_step "$new/kept")" = 3 ] || complain 'no checkpoint'
refused 1 'a plan whose page cannot be written: named' '/nowhere/x.html' 'pass a --snapshot path' --plan --snapshot /nowhere/x.html
cli_end
