#!/usr/bin/env bash
# The fused engine against the candle engine: GPT-2 124M, B=4, T=256, f32, all cores, one process.
# Both train the same workload in turn for several rounds, no checkpoint, telemetry on; the figure
# is the ratio of median tokens/s.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/bench.sh
. scripts/bench.sh

begin 3
steps=${STEPS:-6}

# tokens_per_second ENGINE ROUND: trains, then reads the rate out of the record.
tokens_per_second() {
    rate_of "$folder/$1-$2.run" "$yardstick" train --workload gpt2-124m --engine "$1" \
        --steps "$steps" --set batch.micro_sequences=4 --set batch.sequence_tokens=256 \
        --set batch.global_sequences=4 --set checkpoint.at_end=false
}

echo "gpt2-124m, B=4, T=256, f32, $(nproc) threads, $steps steps a round; checkpoints off," \
    "telemetry on; commit $commit"
printf '%-8s %18s %18s\n' round 'fused tokens/s' 'candle tokens/s'
for round in $(seq "$rounds"); do
    fused=$(tokens_per_second fused "$round")
    candle=$(tokens_per_second candle "$round")
    keep fused "$fused"
    keep candle "$candle"
    printf '%-8s %18.1f %18.1f\n' "$round" "$fused" "$candle"
done
fused=$(median_of fused)
candle=$(median_of candle)
printf '%-8s %18.1f %18.1f\n' median "$fused" "$candle"
at_least engines "$(ratio "$fused" "$candle")" 1.5
