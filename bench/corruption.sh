#!/usr/bin/env bash
# What the checks for silent data corruption cost in a step of GPT-2 124M: two ranks, a sequence of
# 1,024 tokens each, in pairs of runs in turn. By default replicas are compared in one step of 10,
# and gradients are computed twice in one of 100: both are measured in every step here, and count
# with their share.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/bench.sh
. scripts/bench.sh

begin 3
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
echo "two ranks, $(nproc) cores, $rounds pairs; commit $commit"

train=(mpirun -np 2 "$yardstick" train --workload gpt2-124m --steps 4
    --set telemetry.matmul_probe=0s --set batch.micro_sequences=1 --set batch.global_sequences=2)
none="${train[*]} --set sdc.every_steps=0 --set sdc.recompute_every_steps=0"

# change FLAG...: the share by which steps take longer with these settings.
change() {
    local code=0
    "$yardstick" compare --rounds "$rounds" --threshold 1% --json --run "$none" -- "$none $*" \
        >"$folder/compared" 2>"$folder/errors" || code=$?
    # Worse and uncertain are results, too.
    [[ $code = 0 || $code = 10 || $code = 11 ]] || { cat "$folder/errors" >&2; exit 1; }
    python3 -c 'import json, sys
metrics = json.load(open(sys.argv[1]))["metrics"]
step = next(metric for metric in metrics if metric["name"] == "step_ms")
line = "{base:.0f} ms, with the check {new:.0f} ms, {effect:+.4f} [{low:+.4f}, {high:+.4f}]"
print(sys.argv[2] + ":", line.format(**step), file=sys.stderr)
print(step["effect"])' "$folder/compared" "$*"
}
replicas=$(change --set sdc.every_steps=1)
gradients=$(change --set sdc.recompute_every_steps=1)
cost=$(python3 -c 'import sys
print("%.4f" % (1 + float(sys.argv[1]) / 10 + float(sys.argv[2]) / 100))' "$replicas" "$gradients")
at_most corruption_cost "$cost" 1.015
