#!/usr/bin/env bash
# Two ranks against one on the same cores: GPT-2 124M, four sequences of 256 tokens a step, each in
# f32 and bf16, the two ranks sharded as well. They train in turn for several rounds, no checkpoint,
# telemetry on; the figure is the smallest ratio of median tokens/s.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/bench.sh
. scripts/bench.sh

rounds=${ROUNDS:-3}
steps=${STEPS:-8}
goal=0.9
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none

cargo build --release --quiet
yardstick=target/release/yardstick

# tokens_per_second RANKS PRECISION SHARDED ROUND: trains, then reads the rate out of the record.
tokens_per_second() {
    local out=$folder/$1-$2-$3-$4
    mpirun -np "$1" "$yardstick" train --workload gpt2-124m --steps "$steps" --out "$out" \
        --set "precision.compute=$2" --set "run.shard_optimizer=$3" \
        --set "batch.micro_sequences=$((4 / $1))" --set batch.global_sequences=4 \
        --set batch.sequence_tokens=256 --set checkpoint.at_end=false >/dev/null 2>"$out.log" \
        || { cat "$out.log" >&2; return 1; }
    tokens_per_second_of "$out"
}

echo "gpt2-124m, 4 x 256 a step, $(nproc) cores, $steps steps a round; checkpoints off," \
    "telemetry on; commit $(git rev-parse --short HEAD)"
printf '%-10s %8s %12s %12s %12s\n' precision round '1 rank' '2 ranks' '2, sharded'
smallest=
for precision in f32 bf16; do
    for round in $(seq "$rounds"); do
        rates=()
        for kind in '1 false' '2 false' '2 true'; do
            read -r ranks sharded <<<"$kind"
            rate=$(tokens_per_second "$ranks" "$precision" "$sharded" "$round")
            echo "$rate" >>"$folder/$precision-$ranks-$sharded"
            rates+=("$rate")
        done
        printf '%-10s %8s %12.1f %12.1f %12.1f\n' "$precision" "$round" "${rates[@]}"
    done
    one=$(median <"$folder/$precision-1-false")
    two=$(median <"$folder/$precision-2-false")
    sharded=$(median <"$folder/$precision-2-true")
    printf '%-10s %8s %12.1f %12.1f %12.1f\n' "$precision" median "$one" "$two" "$sharded"
    for rate in "$two" "$sharded"; do
        smallest=$(awk -v a="$rate" -v b="$one" -v least="${smallest:-9}" \
            'BEGIN { ratio = a / b; printf "%.4f", ratio < least ? ratio : least }')
    done
done
printf 'ranks: %.2f (goal %s)\n' "$smallest" "$goal"
awk -v ratio="$smallest" -v goal="$goal" 'BEGIN { exit !(ratio >= goal) }'
