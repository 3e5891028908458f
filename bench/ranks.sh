#!/usr/bin/env bash
# Two ranks compared with one on the same cores: GPT-2 124M, four sequences of 256 tokens per step,
# in f32 and bf16, and two ranks also with a sharded optimizer. They train in turn for several
# rounds, without checkpoints, with telemetry; the figure is the smallest ratio of median tokens/s.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/bench.sh
. scripts/bench.sh

begin 3
steps=${STEPS:-8}
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none

# tokens_per_second RANKS PRECISION SHARDED ROUND: trains, and prints its tokens/s.
tokens_per_second() {
    rate_of "$folder/$1-$2-$3-$4" mpirun -np "$1" "$yardstick" train --workload gpt2-124m \
        --steps "$steps" --set "precision.compute=$2" --set "parallel.sharded=$3" \
        --set "batch.micro_sequences=$((4 / $1))" --set batch.global_sequences=4 \
        --set batch.sequence_tokens=256 --set checkpoint.at_end=false
}

echo "gpt2-124m, 4 x 256 per step, $(nproc) cores, $steps steps per round; checkpoints off," \
    "telemetry on; commit $commit"
printf '%-10s %8s %12s %12s %12s\n' precision round '1 rank' '2 ranks' '2, sharded'
for precision in f32 bf16; do
    for round in $(seq "$rounds"); do
        rates=()
        for kind in '1 none' '2 none' '2 optimizer'; do
            read -r ranks sharded <<<"$kind"
            rate=$(tokens_per_second "$ranks" "$precision" "$sharded" "$round")
            add "$precision-$ranks-$sharded" "$rate"
            rates+=("$rate")
        done
        printf '%-10s %8s %12.1f %12.1f %12.1f\n' "$precision" "$round" "${rates[@]}"
    done
    one=$(median_of "$precision-1-none")
    two=$(median_of "$precision-2-none")
    sharded=$(median_of "$precision-2-optimizer")
    printf '%-10s %8s %12.1f %12.1f %12.1f\n' "$precision" median "$one" "$two" "$sharded"
    add ratios "$(ratio "$two" "$one")"
    add ratios "$(ratio "$sharded" "$one")"
done
at_least ranks "$(min_of ratios)" 0.9
