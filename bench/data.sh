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

echo "smoke, $(nproc) cores, $steps steps a round; checkpoints off, telemetry on; commit $commit"
printf '%-8s %20s %20s\n' round 'made, tokens/s' 'taken in, tokens/s'
for round in $(seq "$rounds"); do
    made=$(target/release/examples/synthetic)
    taken=$(rate_of "$folder/$round" "$yardstick" train --steps "$steps" \
        --set checkpoint.at_end=false)
    keep made "$made"
    keep taken "$taken"
    printf '%-8s %20.0f %20.0f\n' "$round" "$made" "$taken"
done
made=$(median_of made)
taken=$(median_of taken)
printf '%-8s %20.0f %20.0f\n' median "$made" "$taken"
at_least data "$(ratio "$made" "$taken")" 20
