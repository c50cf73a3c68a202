# shellcheck shell=sh
# tree.sh -- sourced by the scripts that copy the project's tree.

# tree_files DIR -- the project's files in DIR, a path a line: what git tracks, and what is new and not ignored.
# A tree that is no checkout, as learners may have, is all project but for its build folders.
tree_files() (
    cd "$1" || exit 2
    if [ "$(git rev-parse --show-toplevel 2>/dev/null)" = "$(pwd -P)" ]; then
        # a file that was deleted but not yet from git's index is still listed
        git -c core.quotePath=off ls-files -co --exclude-standard | while IFS= read -r path; do
            [ ! -f "$path" ] || printf '%s\n' "$path"
        done
    else
        find . -path './build*' -prune -o -path './.git' -prune -o -type f -print | sed 's|^\./||'
    fi
)

# tree_copy FROM TO -- copy the files whose paths stand on standard input. One that is the same keeps its time, so
# that make builds only what changed; one that differs gets a new time, even when FROM's is older than what was
# built from it before.
tree_copy() {
    while IFS= read -r path; do
        cmp -s "$1/$path" "$2/$path" && continue
        mkdir -p "$2/$(dirname -- "$path")" && rm -f "$2/$path" && cp "$1/$path" "$2/$path" || return
    done
}
