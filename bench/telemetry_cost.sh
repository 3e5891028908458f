#!/usr/bin/env bash
# What telemetry costs: the time of a step with everything on (an endpoint of metrics, JSON logs of
# every step) against as little as there is (a step file, and no line of steps), in pairs of runs of
# workload smoke on two ranks, in turn.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/bench.sh
. scripts/bench.sh

begin 10
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
echo "smoke on two ranks, $(nproc) cores, $rounds pairs; commit $commit"
train="mpirun -np 2 $yardstick train --set telemetry.matmul_probe=0s"
code=0
"$yardstick" compare --rounds "$rounds" --threshold 1% --json \
    --run "$train --set telemetry.log_every_steps=1000000" \
    -- "$train --prometheus 127.0.0.1:0 --log-format json" >"$folder/compared" 2>/dev/null ||
    code=$?
[ "$code" = 0 ] || [ "$code" = 10 ] || { echo "compare ended with $code" >&2; exit 1; }
change=$(python3 -c 'import json, sys
metrics = json.load(open(sys.argv[1]))["metrics"]
step = next(metric for metric in metrics if metric["name"] == "step_ms")
line = "{base:.2f} ms, with everything {new:.2f} ms, {effect:+.4f} [{low:+.4f}, {high:+.4f}]"
print("step:", line.format(**step), file=sys.stderr)
print("%.4f" % (1 + step["effect"]))' "$folder/compared")
at_most telemetry_cost "$change" 1.01
