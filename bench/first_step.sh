#!/usr/bin/env bash
# How soon after its start `yardstick train` shows the first step of `smoke`, in seconds: the median
# of several starts. There is no peer; the goal is a second.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/bench.sh
. scripts/bench.sh

rounds=${ROUNDS:-9}
goal=1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

cargo build --release --quiet
echo "smoke, $(nproc) cores, $rounds starts; commit $(git rev-parse --short HEAD)"
for round in $(seq "$rounds"); do
    start=$(date +%s%N)
    # The step's line is printed as soon as the step is done.
    seconds=$(target/release/yardstick train --steps 1 --out "$folder/$round" 2>&1 |
        tee "$folder/log" | while read -r line; do
            case $line in 1/1\ *) echo "$(($(date +%s%N) - start))" ;; esac
        done | awk '{ printf "%.3f", $1 / 1e9 }') ||
        { cat "$folder/log" >&2; exit 1; }
    echo "start $round: $seconds s"
    echo "$seconds" >>"$folder/all"
done
median=$(median <"$folder/all")
echo "first_step: $median (goal $goal)"
awk -v seconds="$median" -v goal="$goal" 'BEGIN { exit !(seconds > 0 && seconds <= goal) }'
