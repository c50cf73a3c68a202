#!/bin/sh
# not_yet.sh TARGET -- a make target that is announced and not there yet says so and fails.
echo "make $1: not there yet" >&2
echo "HINT: README.md, \"What is not there yet\", lists what is missing" >&2
exit 1
