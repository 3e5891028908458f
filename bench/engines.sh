#!/usr/bin/env bash
# The fused engine compared with the candle engine: GPT-2 124M, B=4, T=256, f32, all cores, one
# process. Both train the same workload in turn for several rounds, without checkpoints, with
# telemetry; the figure is the ratio of median tokens/s.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/bench.sh
. scripts/bench.sh

begin 3
steps=${STEPS:-6}

# train ENGINE ROUND: trains, and prints its tokens/s.
train() {
    rate_of "$folder/$1-$2.run" "$yardstick" train --workload gpt2-124m --engine "$1" \
        --steps "$steps" --set batch.micro_sequences=4 --set batch.sequence_tokens=256 \
        --set batch.global_sequences=4 --set checkpoint.at_end=false
}
fused() { train fused "$1"; }
candle() { train candle "$1"; }

echo "gpt2-124m, B=4, T=256, f32, $(nproc) threads, $steps steps per round; checkpoints off," \
    "telemetry on; commit $commit"
compare fused candle '    fused tokens/s    candle tokens/s' %18.1f
at_least engines "$median_ratio" 1.5
