#!/usr/bin/env bash
# Whether the tests of the CUDA kernels find errors: runs them on the emulated device with each of
# the errors in tests/emulated_cuda/mutants.txt. At least 90 % must make a test fail under one of
# three seeds of scheduling, and no control may.
#
#   scripts/cuda-mutants.sh [PATTERN]     only those whose names match
set -euo pipefail
cd "$(dirname "$0")/.."

mutants=$PWD/tests/emulated_cuda/mutants.txt
pattern=${1:-.}
profile=${PROFILE:-testing}
goal_percent=90
seeds=(1 2 3)
# A mutant may loop for ever.
limit_seconds=120

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
YARDSTICK_CUDA_PATH=$(scripts/emulated-cuda.sh)
export YARDSTICK_CUDA_PATH
export EMULATED_CUDA_CACHE=$work/kernels
mkdir "$EMULATED_CUDA_CACHE"

# The unit tests of the crate with the kernels.
build=$(cargo test --profile "$profile" --workspace --lib --no-run 2>&1) || {
    echo "$build" >&2
    exit 1
}
tests=$(sed -n 's/.*(\(target.*yardstick_models-[0-9a-f]*\))$/\1/p' <<< "$build")

# kind, name and file of each, separated by tabs.
list() {
    awk -v OFS='\t' '
        /^(mutant|control) / { kind = $1; sub(/^[a-z]+ /, ""); name = $0 }
        /^file / { print kind, name, $2 }' "$mutants"
}

# The tests of a file of kernels.
tests_of() {
    case $1 in
        */ops/layer_norm/* | */ops/rms_norm/* | */ops/norm.cuh) echo cuda_tests::norm ;;
        */ops/adamw/* | */ops/gradient_norm/* | */ops/update_norm/*) echo cuda_tests::step ;;
        */ops/*/*) echo "cuda_tests::$(basename "$(dirname "$1")")" ;;
        *) echo cuda_tests:: ;;
    esac
}

# run_tests NAME FILTER SEED: whether all tests pass. A mutant that is not in its file, or that does
# not compile, ends everything: it shows nothing.
run_tests() {
    local name=$1 filter=$2 seed=$3 status=0
    # The program's own cache does not know mutants.
    rm -rf "$work/cubin"
    # Without bash's own line about a process that aborts.
    {
        EMULATED_CUDA_MUTANT=${name:+$mutants:$name} EMULATED_CUDA_SEED=$seed \
            YARDSTICK_CACHE_DIR=$work/cubin RUST_BACKTRACE=0 \
            timeout "$limit_seconds" "$tests" "$filter" > "$work/log" 2>&1 || status=$?
    } 2> /dev/null
    if grep -a '^emulated NVRTC: ' "$work/log" >&2; then
        exit 1
    fi
    if grep -aq '^running 0 tests' "$work/log"; then
        echo "$0: no test is named $filter" >&2
        exit 1
    fi
    return "$status"
}

# What shows that the tests failed: a line of the emulated device, or that of the first panic.
reason() {
    grep -a -m 1 -e '^emulated CUDA: ' -e 'runtime error: ' "$work/log" ||
        sed -n '/ panicked at /{n;p;q}' "$work/log"
}

# survives NAME FILTER: whether the tests pass under every seed.
survives() {
    local seed
    for seed in "${seeds[@]}"; do
        run_tests "$1" "$2" "$seed" || return 1
    done
}

if ! survives '' cuda_tests::; then
    echo "$0: the tests fail without any mutant:" >&2
    cat "$work/log" >&2
    exit 1
fi

red=0
total=0
controls=0
controls_red=0
while IFS=$'\t' read -r kind name file; do
    [[ $name =~ $pattern ]] || continue
    outcome=green
    survives "$name" "$(tests_of "$file")" || outcome=red
    printf '%-7s %-5s %s' "$kind" "$outcome" "$name"
    if [ "$outcome" = red ]; then
        printf ': %.100s' "$(reason)"
    fi
    echo
    if [ "$kind" = control ]; then
        controls=$((controls + 1))
        [ "$outcome" = green ] || controls_red=$((controls_red + 1))
    else
        total=$((total + 1))
        [ "$outcome" = green ] || red=$((red + 1))
    fi
done < <(list)

echo "controls: $controls_red of $controls red (goal 0)"
echo "mutants: $red of $total red (goal $goal_percent %)"
[ "$controls_red" = 0 ] && [ $((100 * red)) -ge $((goal_percent * total)) ]
