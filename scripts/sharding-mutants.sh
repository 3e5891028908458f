#!/usr/bin/env bash
# Whether the unit tests of the step find errors in how state is sharded: plants each of them in
# turn in a copy of the sources, and runs the tests. Every one must make a test fail, and the
# control none. The copy has a target folder of its own, as cargo takes the crates of both for the
# same.
#
#   scripts/sharding-mutants.sh [PATTERN]     only those whose names match
set -euo pipefail
cd "$(dirname "$0")/.."

pattern=${1:-.}
profile=${PROFILE:-testing}
# A mutant may wait for ever.
limit_seconds=900

target=$PWD/target/sharding-mutants
work=$(mktemp -d)
trap 'git worktree remove --force "$work/copy" 2> /dev/null; rm -rf "$work"' EXIT
git worktree add --quiet --detach "$work/copy"
git diff HEAD | git -C "$work/copy" apply --allow-empty

survivors=0
planted=0

# mutant NAME FILE TEXT OTHER: replaces a text that is in the file exactly once.
mutant() {
    local name=$1 file=$work/copy/trainer/src/step/$2 text=$3 other=$4 content rest
    [[ $name =~ $pattern ]] || return 0
    content=$(< "$file")
    rest=${content#*"$text"}
    if [[ $rest == "$content" || $rest == *"$text"* ]]; then
        echo "$0: $2: expected exactly once: $text" >&2
        exit 1
    fi
    printf '%s\n' "${content/"$text"/"$other"}" > "$file"
    local status=0
    (cd "$work/copy" && CARGO_TARGET_DIR=$target timeout "$limit_seconds" \
        cargo test --profile "$profile" --workspace --lib -- step::tests:: step::windows) \
        > "$work/log" 2>&1 || status=$?
    printf '%s\n' "$content" > "$file"
    if grep -q '^error: could not compile' "$work/log"; then
        grep -m 5 -A 8 '^error' "$work/log" >&2
        echo "$0: $name does not compile" >&2
        exit 1
    fi
    local failed
    failed=$(sed -n 's/^test \(.*\) \.\.\. FAILED$/\1/p' "$work/log")
    if [[ $status == 0 ]]; then
        echo "passes: $name"
        survivors=$((survivors + 1))
    else
        echo "fails: $name: $(grep -c . <<< "$failed") tests, as ${failed%%$'\n'*}"
    fi
    planted=$((planted + 1))
}

mutant 'nothing, the control' mod.rs \
    'let scale = 1.0 / batches.tokens_per_step() as f32;' \
    'let scale = 1.0_f32 / batches.tokens_per_step() as f32;'
if [[ $planted == 1 && $survivors == 0 ]]; then
    tail -n 30 "$work/log" >&2
    exit 1
fi
survivors=0

mutant 'a gradient is scaled by the size of a group' mod.rs \
    'let scale = 1.0 / batches.tokens_per_step() as f32;' \
    'let scale = 1.0 / (batches.tokens_per_step() * state.shard.owner.replicas) as f32;'
mutant 'the span of a window is too short' windows.rs \
    'needs[need].add(position + slots - ahead.min(slots - 1)..position + slots + 1);' \
    'needs[need].add(position + slots..position + slots + 1);'
mutant 'a window is released too early' sharded_weights.rs \
    'if plan.releases && !resident().any(is_kept) {' \
    'if plan.releases && !resident().skip(1).any(is_kept) {'
mutant 'a piece has no owner' shard.rs \
    'self.buckets.iter().flat_map(|bucket| &bucket.pieces)' \
    'self.buckets.iter().flat_map(|bucket| &bucket.pieces).skip(usize::from(self.owner.rank == 1))'

if [[ $survivors -gt 0 ]]; then
    echo "$0: $survivors errors are not found" >&2
    exit 1
fi
