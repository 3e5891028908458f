#!/usr/bin/env bash
# Time from the start of `yardstick train` to the output of the first step of `smoke`, in seconds:
# the median of several starts. There is no peer; the goal is one second.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/bench.sh
. scripts/bench.sh

begin 9
echo "smoke, $(nproc) cores, $rounds starts; commit $commit"
for round in $(seq "$rounds"); do
    start=$(date +%s%N)
    # The line of the step is printed as soon as the step is complete.
    seconds=$("$yardstick" train --steps 1 --out "$folder/$round" 2>&1 |
        tee "$folder/log" | while read -r line; do
            case $line in 1/1\ *) echo "$(($(date +%s%N) - start))" ;; esac
        done | awk '{ printf "%.3f", $1 / 1e9 }') ||
        { cat "$folder/log" >&2; exit 1; }
    echo "start $round: $seconds s"
    add seconds "$seconds"
done
at_most first_step "$(median_of seconds)" 1
