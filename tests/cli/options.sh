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

# An unknown size is answered with all presets of the family.
problem='no family'
for family in $(sed -n 's/.*--model=auto.|\([^`]*\)`.*/\1/p' "$work/rows" | tr '\\|' '  '); do
    [ "$problem" != 'no family' ] || problem=''
    "$build/fsdp_train" --model "$family" --size none 2>&1 | sed -n 's/^HINT: pass --size with one of: //p' | tr '|' '\n' >"$work/names"
    awk -F ' [|] ' -v row="| \`$family\`" '$1 == row { gsub(/ \([^)]*\)|;.*/, "", $2); gsub(/, /, "\n", $2); print $2 }' docs/models.md >"$work/shown"
    { [ -s "$work/names" ] && cmp -s "$work/names" "$work/shown"; } || problem="$family: $(xargs <"$work/names"); docs/models.md: $(xargs <"$work/shown")"
done
judge 'docs/models.md has the presets of each family' "$problem"
cli_end
