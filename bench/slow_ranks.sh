#!/usr/bin/env bash
# Cost of the detector of slow ranks for rank 0, by the number of ranks. It is part of the time
# between steps. The goal is less than 0.1 % of a step of one second with 16,384 ranks: 1,000 us.
set -euo pipefail
cd "$(dirname "$0")/.."
for _ in 1 2 3; do
    cargo bench --quiet --package yardstick-record --bench slow_ranks
done
