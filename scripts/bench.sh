# What the scripts in bench/ share; sourced by them.
# shellcheck shell=bash

# median: of the numbers on stdin, a line each.
median() {
    sort -n | awk '{ v[NR] = $1 } END { print (v[int((NR + 1) / 2)] + v[int(NR / 2) + 1]) / 2 }'
}

# tokens_per_second_of DIR: all ranks' rate, out of a run's record.
tokens_per_second_of() {
    sed -n '/"tokens_per_second"/,/}/ s/.*"total": \([0-9.]*\).*/\1/p' "$1/record.json" |
        head -n 1
}
