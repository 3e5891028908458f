#!/usr/bin/env bash
# Whether the unit tests of the step find errors in how state is sharded: plants each of those in
# tests/parallel/mutants.txt in turn in a copy of the sources, and runs the tests. Every mutant must
# make a test fail, and the control none. The copy has a target folder of its own, as cargo takes
# the crates of both for the same.
#
#   scripts/sharding-mutants.sh [PATTERN]     only those whose names match
set -euo pipefail
cd "$(dirname "$0")/.."

pattern=${1:-.}
profile=${PROFILE:-testing}
list=$PWD/tests/parallel/mutants.txt
# A mutant may wait for ever.
limit_seconds=900

target=$PWD/target/sharding-mutants
work=$(mktemp -d)
trap 'git worktree remove --force "$work/copy" 2> /dev/null; rm -rf "$work"' EXIT
git worktree add --quiet --detach "$work/copy"
git diff HEAD | git -C "$work/copy" apply --allow-empty

survivors=0

# run_tests KIND NAME FILE TEXT OTHER: replaces a text of the copy, and runs the tests.
run_tests() {
    local kind=$1 name=$2 file=$work/copy/$3 text=$4 other=$5 content
    [[ $name =~ $pattern || $kind == control ]] || return 0
    content=$(< "$file")
    if [[ $content != *"$text"* ]]; then
        echo "$0: $3 has no such text: $text" >&2
        exit 1
    fi
    printf '%s\n' "${content/"$text"/"$other"}" > "$file"
    local status=0
    (cd "$work/copy" && CARGO_TARGET_DIR=$target timeout "$limit_seconds" \
        cargo test --profile "$profile" --workspace --lib -- step::tests:: step::windows) \
        > "$work/log" 2>&1 < /dev/null || status=$?
    printf '%s\n' "$content" > "$file"
    local failed
    failed=$(sed -n 's/^test \(.*\) \.\.\. FAILED$/\1/p' "$work/log")
    if [[ $status != 0 && $status != 124 && -z $failed ]]; then
        tail -n 30 "$work/log" >&2
        echo "$0: $name: the tests did not run, status $status" >&2
        exit 1
    fi
    if [[ $kind == control && $status != 0 ]]; then
        echo "$0: the tests fail without a mutant: ${failed%%$'\n'*}" >&2
        exit 1
    fi
    if [[ $status == 0 ]]; then
        echo "passes: $kind $name"
        [[ $kind == control ]] || survivors=$((survivors + 1))
    else
        echo "fails: $kind $name: $(grep -c . <<< "$failed") tests, as ${failed%%$'\n'*}"
    fi
}

while IFS= read -r line; do
    case $line in
        'control '* | 'mutant '*) kind=${line%% *} name=${line#* } ;;
        'file '*) file=${line#* } ;;
        -*) text=${line#-} ;;
        +*) run_tests "$kind" "$name" "$file" "$text" "${line#+}" ;;
    esac
done < "$list"

if [[ $survivors -gt 0 ]]; then
    echo "$0: $survivors errors are not found" >&2
    exit 1
fi
