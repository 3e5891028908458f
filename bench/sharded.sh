#!/usr/bin/env bash
# Cost of sharding weights where memory would suffice: GPT-2 124M on two ranks of this machine, two
# sequences of 256 tokens a rank and step, in f32 and bf16, with `parallel.sharded` none and
# weights. They train in turn for several rounds, without checkpoints, with telemetry; the figure is
# the larger ratio of median tokens/s. The traffic of the last sharded run says what it costs: the
# all-gathers that are not hidden.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/bench.sh
. scripts/bench.sh

begin 3
steps=${STEPS:-8}
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none

# rate SHARDED ROUND: trains, and prints the tokens/s.
rate() {
    rate_of "$folder/$precision-$1-$2" mpirun -np 2 "$yardstick" train --workload gpt2-124m \
        --steps "$steps" --set "precision.compute=$precision" --set "parallel.sharded=$1" \
        --set batch.micro_sequences=2 --set batch.global_sequences=4 \
        --set batch.sequence_tokens=256 --set checkpoint.at_end=false
}

unsharded() { rate none "$1"; }
sharded() { rate weights "$1"; }

echo "gpt2-124m, 2 ranks x 2 x 256 per step, $(nproc) cores, $steps steps per round; checkpoints" \
    "off, telemetry on; commit $commit"
for precision in f32 bf16; do
    echo "$precision"
    rm -f "$folder/unsharded" "$folder/sharded"
    compare unsharded sharded '  unsharded, tokens/s   sharded, tokens/s' %20.1f
    add ratios "$median_ratio"
    "$yardstick" report "$folder/$precision-weights-$rounds" | grep -A 3 '| dimension'
done
at_most sharded "$(sort -n "$folder/ratios" | tail -n 1)" 1.25
