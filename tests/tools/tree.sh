# shellcheck shell=sh
# tree.sh -- sourced by the scripts that copy the project's tree.

# tree_files DIR -- the project's files in DIR, one path per line: files that git tracks, and new files that it does not ignore.
# A tree that is no checkout, as learners may have, is the project except for its build folders.
tree_files() (
    cd "$1" || exit 2
    if [ "$(git rev-parse --show-toplevel 2>/dev/null)" = "$(pwd -P)" ]; then
        # git still lists a file that was deleted but not removed from its index
        git -c core.quotePath=off ls-files -co --exclude-standard | while IFS= read -r path; do
            [ ! -f "$path" ] || printf '%s\n' "$path"
        done
    else
        find . -path './build*' -prune -o -path './.git' -prune -o -type f -print | sed 's|^\./||'
    fi
)

# tree_copy FROM TO -- copies the files that standard input lists. An identical file keeps its time, so that make builds only
# what changed. A different file gets a new time, even if FROM's is older than what was built from TO's.
tree_copy() {
    while IFS= read -r path; do
        cmp -s "$1/$path" "$2/$path" && continue
        mkdir -p "$2/$(dirname -- "$path")" && rm -f "$2/$path" && cp "$1/$path" "$2/$path" || return
    done
}
