#!/bin/bash
# options.sh [BUILD] -- docs/options.md has the rows of the table of options, as tests/cli/option_table.c prints them, and a checkpoint has
# the facts that rows name.
. "$(dirname "$0")/lib.sh"
cli_start "$@"

problem=''
"$build/tests/cli/option_table" >"$work/rows" 2>"$work/err" || problem="exit status $?"
awk '/^## / { inside = /^## All options/ } inside && /^\|/' docs/options.md >"$work/shown"
cmp -s "$work/shown" "$work/rows" || problem=$(diff "$work/shown" "$work/rows" | grep '^[<>]' | head -2 | sed 's/^</docs\/options.md:/; s/^>/option_table:/')
judge 'docs/options.md has the line of each option that its row makes' "$problem"

# The last column of a row, and the names that --resume-change takes
sed '1,2d; s/ |$//; s/.* | *//' "$work/rows" | sort -u | grep -vx 'model\|optimizer\|' >"$work/facts"
"$build/fsdp_train" --resume "$work" --resume-change none 2>&1 | sed -n 's/.*expected some of //p' | tr , '\n' | sort >"$work/names"
problem=$(diff "$work/facts" "$work/names" | sed -n 's/^< /only in a row: /p; s/^> /in no row: /p')
[ "$(wc -l <"$work/names")" -gt 10 ] || problem="$(wc -l <"$work/names") names"
judge 'the facts of rows are those that --resume-change names, model and optimizer' "$problem"
cli_end
