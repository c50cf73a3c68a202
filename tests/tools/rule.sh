# rule.sh -- prints the verdict on one rule of the tree; sourced, not run. Sets status to 1 if a rule is broken.
status=0

# rule NAME TEXT HITS -- the rule is broken if HITS is not empty
rule() {
    if [ -z "$3" ]; then
        echo "PASS $1: $2"
    else
        echo "FAIL $1: $2"
        echo "$3" | head -20 | sed 's/^/     /'
        status=1
    fi
}
