# Functions for the scripts in bench/, which source this file at the root of the repository.
# shellcheck shell=bash

# begin ROUNDS: builds, and sets
# - rounds: the environment variable ROUNDS, or the argument;
# - folder: a temporary folder for all files, which is removed when the script exits;
# - yardstick, commit: the binary and the commit that it was built from.
# shellcheck disable=SC2034  # for the scripts
begin() {
    rounds=${ROUNDS:-$1}
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
    export TMPDIR=$folder # other launchers of the user, which remove what they share, have another
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    cargo build --release --quiet
    yardstick=$PWD/target/release/yardstick
    commit=$(git rev-parse --short HEAD)
}

# with_torch SCRIPT ARGUMENT...: builds, and becomes this Python script with PyTorch, which is
# installed into .venv-torch.
with_torch() {
    if [ ! -x .venv-torch/bin/python ]; then
        python3 -m venv .venv-torch
        .venv-torch/bin/pip install --quiet numpy setuptools torch
    fi
    cargo build --release --quiet
    exec .venv-torch/bin/python "$@"
}

# quietly LOG COMMAND...: redirects stderr to LOG, and shows it if the command fails.
quietly() {
    local log=$1
    shift
    "$@" 2>"$log" || { cat "$log" >&2; return 1; }
}

# rate_of DIR COMMAND...: trains with --out DIR; prints the tokens/s of all ranks, from the record.
rate_of() {
    local out=$1 rate
    shift
    quietly "$out.log" "$@" --out "$out" >/dev/null || return 1
    rate=$(sed -n '/"tokens_per_second"/,/}/ s/.*"total": \([0-9.]*\).*/\1/p' "$out/record.json" |
        head -n 1)
    [ -n "$rate" ] || { echo "$out has no tokens per second" >&2; return 1; }
    echo "$rate"
}

# add NAME NUMBER: adds a measurement.
add() {
    echo "$2" >>"$folder/$1"
}

# median_of NAME: prints the median of its measurements.
median_of() {
    sort -n "$folder/$1" |
        awk '{ v[NR] = $1 } END { printf "%.10g", (v[int((NR + 1) / 2)] + v[int(NR / 2) + 1]) / 2 }'
}

# min_of NAME: prints the smallest of its measurements.
min_of() {
    sort -n "$folder/$1" | sed -n 1p
}

# ratio A B: prints A / B; fails if that is not defined.
ratio() {
    is_number "$1" && is_number "$2" &&
        awk -v a="$1" -v b="$2" 'BEGIN { if (b == 0) exit 1; printf "%.4f", a / b }'
}

# compare A B HEADINGS FORMAT: calls the functions A and B in turn for all rounds, with the round as
# argument; prints all measurements and the medians. Sets median_ratio: A's median over B's.
# shellcheck disable=SC2034  # for the scripts
compare() {
    local row="%-8s $4 $4\n" round a b
    # shellcheck disable=SC2059  # the format is an argument
    printf "%-8s $3\n" round
    for round in $(seq "$rounds"); do
        a=$("$1" "$round")
        b=$("$2" "$round")
        add "$1" "$a"
        add "$2" "$b"
        # shellcheck disable=SC2059
        printf "$row" "$round" "$a" "$b"
    done
    a=$(median_of "$1")
    b=$(median_of "$2")
    # shellcheck disable=SC2059
    printf "$row" median "$a" "$b"
    median_ratio=$(ratio "$a" "$b")
}

# at_least NAME FIGURE GOAL: prints a benchmark's last line; fails if the figure is below the goal
# or not a number.
at_least() {
    printf '%s: %.2f (goal %s)\n' "$@"
    is_number "$2" && awk -v figure="$2" -v goal="$3" 'BEGIN { exit !(figure >= goal) }'
}

# is_number FIGURE: whether it is a finite number.
is_number() {
    [[ $1 =~ ^[0-9]+(\.[0-9]+)?(e[+-]?[0-9]+)?$ ]]
}

# at_most NAME FIGURE GOAL: the same, but fails if the figure is above the goal or 0.
at_most() {
    printf '%s: %s (goal %s)\n' "$@"
    is_number "$2" &&
        awk -v figure="$2" -v goal="$3" 'BEGIN { exit !(figure > 0 && figure <= goal) }'
}
