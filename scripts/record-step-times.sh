#!/usr/bin/env bash
# Records what steps take two ranks of `smoke` by themselves, for tests of what finds slow ranks:
#
#   scripts/record-step-times.sh YARDSTICK OTHERS_MAX >record/src/fixtures/traces/NAME.txt
#
# It records 6 runs of 100 steps. A run counts if all other processes used at most OTHERS_MAX
# percent of the processors meanwhile. A line is a step: of each rank the microseconds of compute,
# data and host. An empty line ends a run.
set -euo pipefail

yardstick=$1
others_max=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export TMPDIR=$folder # other launchers of the user, which remove what they share, have another
TIMEFORMAT='%R %U %S'

# Seconds that processors were busy since the machine started.
busy_seconds() {
    awk -v hertz="$(getconf CLK_TCK)" \
        '/^cpu / { printf "%.2f\n", ($2 + $3 + $4 + $7 + $8) / hertz }' \
        /proc/stat
}

# others BUSY_BEFORE BUSY_AFTER ELAPSED USER SYSTEM: the percentage that others used.
others() {
    awk -v before="$1" -v after="$2" -v elapsed="$3" -v own_user="$4" -v own_system="$5" \
        -v processors="$(nproc)" 'BEGIN {
            print 100 * (after - before - own_user - own_system) / (elapsed * processors)
        }'
}

print_run() {
    python3 - "$1"/steps/r000000.jsonl "$1"/steps/r000001.jsonl <<'PYTHON'
import json
import sys

KINDS = [["forward", "backward", "optimizer"], ["data"], ["other"]]
ranks = [[json.loads(line)["phases_ns"] for line in open(path)] for path in sys.argv[1:]]
for phases_of_ranks in zip(*ranks):
    times = [sum(phases[name] for name in kind) for phases in phases_of_ranks for kind in KINDS]
    print(*(time // 1000 for time in times))
print()
PYTHON
}

recorded=0
for attempt in $(seq 20); do
    run=$folder/$attempt
    before=$(busy_seconds)
    used=$({ time mpirun -np 2 "$yardstick" train --steps 100 --checkpoint-every never \
        --set telemetry.matmul_probe=0s --out "$run" >&2 2>"$folder/log"; } 2>&1)
    read -r elapsed user system <<<"$used"
    share=$(others "$before" "$(busy_seconds)" "$elapsed" "$user" "$system")
    printf 'run %s: %s s, others used %s %%\n' "$attempt" "$elapsed" "$share" >&2
    if awk -v share="$share" -v max="$others_max" 'BEGIN { exit !(share <= max) }'; then
        print_run "$run"
        recorded=$((recorded + 1))
    fi
    [ "$recorded" = 6 ] && exit
    rm -rf "$run"
    sleep 5 # others go on
done
exit 1
