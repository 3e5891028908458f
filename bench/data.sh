#!/usr/bin/env bash
# Whether data is there before a step needs it: tokens/s of the synthetic stream on one thread
# against the tokens/s that a step of `smoke`, the fastest there is, takes in on all cores. In turn
# for several rounds, no checkpoint, telemetry on; the figure is the ratio of the medians.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/bench.sh
. scripts/bench.sh

begin 5
steps=${STEPS:-60}
cargo build --release --quiet --example synthetic

made() { target/release/examples/synthetic; }
taken() {
    rate_of "$folder/$1.run" "$yardstick" train --steps "$steps" --set checkpoint.at_end=false
}

echo "smoke, $(nproc) cores, $steps steps a round; checkpoints off, telemetry on; commit $commit"
versus made taken '      made, tokens/s   taken in, tokens/s' %20.0f
at_least data "$against" 20
