#!/usr/bin/env bash
# The fused engine against the candle engine: GPT-2 124M, B=4, T=256, f32, all cores, one process.
# Both train the same workload in turn for several rounds, no checkpoint, telemetry on; the figure
# is the ratio of median tokens/s.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/bench.sh
. scripts/bench.sh

rounds=${ROUNDS:-3}
steps=${STEPS:-6}
goal=1.5
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

cargo build --release --quiet
yardstick=target/release/yardstick

# tokens_per_second ENGINE ROUND: trains, then reads the rate out of the record.
tokens_per_second() {
    local out=$folder/$1-$2
    "$yardstick" train --workload gpt2-124m --engine "$1" --steps "$steps" --out "$out" \
        --set batch.micro_sequences=4 --set batch.sequence_tokens=256 \
        --set batch.global_sequences=4 --set checkpoint.at_end=false >/dev/null 2>"$out.log" \
        || { cat "$out.log" >&2; return 1; }
    tokens_per_second_of "$out"
}

echo "gpt2-124m, B=4, T=256, f32, $(nproc) threads, $steps steps a round; checkpoints off," \
    "telemetry on; commit $(git rev-parse --short HEAD)"
printf '%-8s %18s %18s\n' round 'fused tokens/s' 'candle tokens/s'
for round in $(seq "$rounds"); do
    fused=$(tokens_per_second fused "$round")
    candle=$(tokens_per_second candle "$round")
    echo "$fused" >>"$folder/fused"
    echo "$candle" >>"$folder/candle"
    printf '%-8s %18.1f %18.1f\n' "$round" "$fused" "$candle"
done
fused=$(median <"$folder/fused")
candle=$(median <"$folder/candle")
printf '%-8s %18.1f %18.1f\n' median "$fused" "$candle"
ratio=$(awk -v a="$fused" -v b="$candle" 'BEGIN { printf "%.2f", a / b }')
echo "engines: $ratio (goal $goal)"
awk -v ratio="$ratio" -v goal="$goal" 'BEGIN { exit !(ratio >= goal) }'
