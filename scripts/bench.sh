# What the scripts in bench/ share; sourced by them at the root of the repository.
# shellcheck shell=bash

# begin ROUNDS: builds, and sets
# - rounds: ROUNDS of the environment, or that many;
# - folder: a new one for all that is measured, which goes with the script;
# - yardstick, commit: the binary and what it was built from.
# shellcheck disable=SC2034  # for the scripts
begin() {
    rounds=${ROUNDS:-$1}
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    cargo build --release --quiet
    yardstick=$PWD/target/release/yardstick
    commit=$(git rev-parse --short HEAD)
}

# quietly LOG COMMAND...: its stderr goes to LOG, and is shown if it fails.
quietly() {
    local log=$1
    shift
    "$@" 2>"$log" || { cat "$log" >&2; return 1; }
}

# rate_of DIR COMMAND...: trains with --out DIR; prints all ranks' tokens/s, out of the record.
rate_of() {
    local out=$1 rate
    shift
    quietly "$out.log" "$@" --out "$out" >/dev/null || return 1
    rate=$(sed -n '/"tokens_per_second"/,/}/ s/.*"total": \([0-9.]*\).*/\1/p' "$out/record.json" |
        head -n 1)
    [ -n "$rate" ] || { echo "$out has no tokens per second" >&2; return 1; }
    echo "$rate"
}

# keep NAME NUMBER: one more measurement of that name.
keep() {
    echo "$2" >>"$folder/$1"
}

# median_of NAME: of its measurements.
median_of() {
    sort -n "$folder/$1" |
        awk '{ v[NR] = $1 } END { printf "%.10g", (v[int((NR + 1) / 2)] + v[int(NR / 2) + 1]) / 2 }'
}

# least_of NAME: the smallest of its measurements.
least_of() {
    sort -n "$folder/$1" | sed -n 1p
}

# ratio A B: of two numbers; fails where there is nothing to divide by.
ratio() {
    is_number "$1" && is_number "$2" &&
        awk -v a="$1" -v b="$2" 'BEGIN { if (b == 0) exit 1; printf "%.4f", a / b }'
}

# versus A B HEADS FORMAT: measures A and B in turn for all rounds, each by the function of that
# name, which is given the round; prints all and the medians. Sets against: their ratio.
# shellcheck disable=SC2034  # for the scripts
versus() {
    local row="%-8s $4 $4\n" round a b
    # shellcheck disable=SC2059  # the rows are made here
    printf "%-8s $3\n" round
    for round in $(seq "$rounds"); do
        a=$("$1" "$round")
        b=$("$2" "$round")
        keep "$1" "$a"
        keep "$2" "$b"
        # shellcheck disable=SC2059
        printf "$row" "$round" "$a" "$b"
    done
    a=$(median_of "$1")
    b=$(median_of "$2")
    # shellcheck disable=SC2059
    printf "$row" median "$a" "$b"
    against=$(ratio "$a" "$b")
}

# at_least NAME FIGURE GOAL: a benchmark's last line; fails below the goal, and for no number.
at_least() {
    printf '%s: %.2f (goal %s)\n' "$@"
    is_number "$2" && awk -v figure="$2" -v goal="$3" 'BEGIN { exit !(figure >= goal) }'
}

# is_number FIGURE: in digits, so that inf, nan and nothing are none.
is_number() {
    [[ $1 =~ ^[0-9]+(\.[0-9]+)?(e[+-]?[0-9]+)?$ ]]
}

# at_most NAME FIGURE GOAL: the same; fails above the goal, and for 0.
at_most() {
    printf '%s: %s (goal %s)\n' "$@"
    is_number "$2" &&
        awk -v figure="$2" -v goal="$3" 'BEGIN { exit !(figure > 0 && figure <= goal) }'
}
