#!/usr/bin/env bash
# Whether data is generated faster than it is consumed: tokens/s of the synthetic stream on one
# thread compared with the tokens/s of training `smoke`, the fastest preset, on all cores. In turn
# for several rounds, without checkpoints, with telemetry; the figure is the ratio of the medians.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/bench.sh
. scripts/bench.sh

begin 5
steps=${STEPS:-60}
cargo build --release --quiet --package yardstick-trainer --example synthetic

generated() { target/release/examples/synthetic; }
consumed() {
    rate_of "$folder/$1.run" "$yardstick" train --steps "$steps" --set checkpoint.at_end=false
}

echo "smoke, $(nproc) cores, $steps steps per round; checkpoints off, telemetry on; commit $commit"
compare generated consumed ' generated, tokens/s   consumed, tokens/s' %20.0f
at_least data "$median_ratio" 20
