#!/usr/bin/env bash
# Plants the errors of a list, one by one, in a copy of the sources, and runs the tests that must
# find them. Every mutant must make a test fail, and a control none.
#
#   scripts/plant-errors.sh LIST [PATTERN]     only mutants whose names match
#
# LIST is a mutants.txt. The line `tests` of an entry has arguments of scripts/cargo-test.sh; one
# before the first entry is for all that have none. An entry's own tests must also pass without the
# error: they run once before. The copy has a target folder of its own, as cargo takes the crates of
# both for the same.
set -euo pipefail
cd "$(dirname "$0")/.."

if [[ $# -lt 1 || ! -f $1 ]]; then
    echo "usage: $0 LIST [PATTERN]" >&2
    exit 2
fi
list=$1
pattern=${2:-.}
# A mutant may wait for ever.
limit_seconds=900

target=target/planted-errors
if [[ ! -d $target ]]; then
    scripts/seed-target.sh "$target"
fi
target=$PWD/$target
work=$(mktemp -d)
trap 'git worktree remove --force "$work/copy" 2> /dev/null; rm -rf "$work"' EXIT
git worktree add --quiet --detach "$work/copy"
git diff HEAD | git -C "$work/copy" apply --allow-empty

# The entries: one of each array.
kinds=() names=() files=() texts=() others=() tests=()
default_tests=''
while IFS= read -r line; do
    last=$((${#names[@]} - 1))
    case $line in
        'control '* | 'mutant '*)
            kinds+=("${line%% *}") names+=("${line#* }") files+=('') texts+=('') others+=('')
            tests+=('')
            ;;
        'tests '*)
            if [[ $last -lt 0 ]]; then
                default_tests=${line#* }
            else
                tests[last]=${line#* }
            fi
            ;;
        'file '*) [[ $last -lt 0 ]] || files[last]=${line#* } ;;
        # Several lines are one text.
        -*) [[ $last -lt 0 ]] || texts[last]+=${texts[last]:+$'\n'}${line#-} ;;
        +*) [[ $last -lt 0 ]] || others[last]+=${others[last]:+$'\n'}${line#+} ;;
    esac
done < "$list"

# run_tests ARGUMENTS: runs the tests of the copy. Sets `status`, and `failed` to the names of those
# that failed.
run_tests() {
    local -a arguments
    read -r -a arguments <<< "$1"
    status=0
    (cd "$work/copy" && CARGO_TARGET_DIR=$target timeout "$limit_seconds" \
        scripts/cargo-test.sh "${arguments[@]}") > "$work/log" 2>&1 < /dev/null || status=$?
    failed=$(sed -n 's/^test \(.*\) \.\.\. FAILED\( <.*>\)\{0,1\}$/\1/p' "$work/log")
}

# require_run NAME: fails if no test ran, as where the copy is not compiled or no test has the name.
require_run() {
    if [[ $status != 0 && $status != 124 && -z $failed ]]; then
        tail -n 30 "$work/log" >&2
        echo "$0: $1: the tests did not run, status $status" >&2
        exit 1
    fi
}

# require_passed NAME: fails unless the tests passed.
require_passed() {
    require_run "$1"
    if [[ $status != 0 ]]; then
        tail -n 30 "$work/log" >&2
        echo "$0: $1: the tests fail without a mutant, status $status: ${failed%%$'\n'*}" >&2
        exit 1
    fi
}

# is_chosen INDEX
is_chosen() {
    [[ ${kinds[$1]} == control || ${names[$1]} =~ $pattern ]]
}

declare -A passed
for index in "${!names[@]}"; do
    own=${tests[index]}
    if is_chosen "$index" && [[ -n $own && -z ${passed[$own]-} ]]; then
        run_tests "$own"
        require_passed "without ${names[index]}"
        passed[$own]=1
    fi
done

survivors=0
for index in "${!names[@]}"; do
    is_chosen "$index" || continue
    kind=${kinds[index]} name=${names[index]} text=${texts[index]} other=${others[index]}
    file=$work/copy/${files[index]}
    content=$(< "$file")
    if [[ -z $text || $content != *"$text"* ]]; then
        echo "$0: ${files[index]} has no such text: $text" >&2
        exit 1
    fi
    printf '%s\n' "${content/"$text"/"$other"}" > "$file"
    run_tests "${tests[index]:-$default_tests}"
    printf '%s\n' "$content" > "$file"
    require_run "$name"
    if [[ $kind == control ]]; then
        require_passed "$name"
    fi
    if [[ $status == 0 ]]; then
        echo "passes: $kind $name"
        [[ $kind == control ]] || survivors=$((survivors + 1))
    else
        echo "fails: $kind $name: $(grep -c . <<< "$failed") tests, as ${failed%%$'\n'*}"
    fi
done

if [[ $survivors -gt 0 ]]; then
    echo "$0: $survivors errors are not found" >&2
    exit 1
fi
