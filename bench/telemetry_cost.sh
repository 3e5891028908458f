#!/usr/bin/env bash
# What telemetry costs, with everything on (hardware read every second, an endpoint of metrics,
# OTLP to a collector that takes everything, TensorBoard, JSON logs of every step) against as little
# as there is (a step file):
#
# - telemetry_cost: the time of a step of workload smoke on two ranks, in pairs of runs in turn.
# - telemetry_threads, telemetry_threads_gpt2: the share of the processors' time that threads of
#   telemetry take, in smoke and in two steps of gpt2-124m. On a noisy machine this says more.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/bench.sh
. scripts/bench.sh

begin 10
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
echo "two ranks, $(nproc) cores, $rounds pairs; commit $commit"

# Answers every request with 200, as a collector does, and prints its port.
python3 -u -c '
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
class Collector(BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.end_headers()
    def log_message(self, *arguments):
        pass
server = ThreadingHTTPServer(("127.0.0.1", 0), Collector)
print(server.server_port)
server.serve_forever()' >"$folder/port" &
collector=$!
trap 'kill $collector; rm -rf "$folder"' EXIT
until [ -s "$folder/port" ]; do sleep 0.1; done

train=(mpirun -np 2 "$yardstick" train --set telemetry.matmul_probe=0s)
everything=(--prometheus 127.0.0.1:0 --otlp "http://127.0.0.1:$(cat "$folder/port")"
    --set telemetry.tensorboard=true --log-format json)
little=(--set telemetry.log_every_steps=1000000 --set telemetry.hardware_interval=0s
    --set telemetry.straggler_block_steps=0 --set telemetry.health_every_steps=0)

code=0
"$yardstick" compare --rounds "$rounds" --threshold 1% --json \
    --run "${train[*]} ${little[*]}" -- "${train[*]} ${everything[*]}" \
    >"$folder/compared" 2>/dev/null || code=$?
[ "$code" = 0 ] || [ "$code" = 10 ] || { echo "compare ended with $code" >&2; exit 1; }
change=$(python3 -c 'import json, sys
metrics = json.load(open(sys.argv[1]))["metrics"]
step = next(metric for metric in metrics if metric["name"] == "step_ms")
line = "{base:.2f} ms, with everything {new:.2f} ms, {effect:+.4f} [{low:+.4f}, {high:+.4f}]"
print("step:", line.format(**step), file=sys.stderr)
print("%.4f" % (1 + step["effect"]))' "$folder/compared")

# threads FLAG...: the share of telemetry's threads, of a run with everything on.
threads() {
    python3 bench/telemetry_threads.py yardstick "${train[@]}" "${everything[@]}" "$@" \
        --out "$folder/threads-$RANDOM" >"$folder/threads"
    python3 -c 'import json, sys
seconds = json.load(open(sys.argv[1]))
names = ("telemetry", "prometheus", "hardware", "watchdog", "otlp", "OpenTelemetry", "reqwest")
own = {name: spent for name, spent in seconds.items() if name.startswith(names)}
print("threads, s:", own, "of", round(sum(seconds.values()), 2), file=sys.stderr)
print("%.4f" % (sum(own.values()) / sum(seconds.values())))' "$folder/threads"
}
smoke=$(threads)
gpt2=$(threads --workload gpt2-124m --steps 2 --set batch.micro_sequences=1 \
    --set batch.global_sequences=2)

status=0
at_most telemetry_cost "$change" 1.01 || status=1
at_most telemetry_threads "$smoke" 0.01 || status=1
at_most telemetry_threads_gpt2 "$gpt2" 0.005 || status=1
exit "$status"
