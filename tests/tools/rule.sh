# rule.sh -- the verdict on one rule of the tree; sourced, not run. Sets status to 1 when one is broken.
status=0

# rule NAME TEXT HITS -- broken when HITS is not empty
rule() {
    if [ -z "$3" ]; then
        echo "PASS $1: $2"
    else
        echo "FAIL $1: $2"
        echo "$3" | head -20 | sed 's/^/     /'
        status=1
    fi
}
