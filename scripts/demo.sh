#!/usr/bin/env bash
# A demonstration in two minutes: trains on two ranks, kills one half-way together with the disk of
# its node, resumes, and ends with the same bits as an uninterrupted run.
set -euo pipefail
cd "$(dirname "$0")/.."

yardstick=$PWD/target/release/yardstick
page=$PWD/target/demo-report.html
folder=$(mktemp -d "${TMPDIR:-/tmp}/yardstick-demo.XXXXXX")
trap 'rm -rf "$folder"' EXIT
cd "$folder"
export TMPDIR=$folder # other launchers of the user, which remove what they share, have another
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1

bold='' plain=''
if [ -t 1 ]; then bold=$'\033[1m' plain=$'\033[0m'; fi
say() { printf '\n%s== %s%s\n' "$bold" "$*" "$plain"; }
# Each rank is a node with a disk of its own, where checkpoints are saved first. They are copied to
# the folder of the run, which both see.
train() {
    local run=("$yardstick" train --workload smoke --checkpoint-every 20steps --out "$1")
    mpirun -np 1 env LOCAL_CHECKPOINT_DIR="$1-node0" "${run[@]}" : \
        -np 1 env LOCAL_CHECKPOINT_DIR="$1-node1" "${run[@]}"
}
fingerprint() { "$yardstick" report --json "$1" | grep -A3 '"fingerprint"'; }

say "1/4  An uninterrupted run of workload smoke on two ranks"
train uninterrupted

say "2/4  The same run, but rank 1 gets a SIGKILL half-way, and its node's disk is lost"
train killed &
launcher=$!
steps=killed/steps/r000001.jsonl
until [ "$(cat "$steps" 2>/dev/null | wc -l)" -ge 110 ]; do
    kill -0 "$launcher" 2>/dev/null || { echo "the run ended before it was killed" >&2; exit 1; }
    sleep 0.02
done
victim=$("$yardstick" report --json killed |
    sed -n 's/.*"pid": \([0-9]*\).*/\1/p' | tail -n 1)
kill -KILL "$victim"
code=0
wait "$launcher" || code=$?
rm -rf killed-node1
echo "mpirun ended with exit code $code after kill -KILL $victim"

say "3/4  The same command resumes: what the lost disk had comes from the run's folder"
train killed

say "4/4  Are the losses and weights of both runs the same, bit for bit?"
fingerprint uninterrupted
fingerprint killed
if [ "$(fingerprint uninterrupted)" != "$(fingerprint killed)" ]; then
    echo "They differ." >&2
    exit 1
fi
echo "Bit-identical."
"$yardstick" report killed --html "$page"
say "The same with charts: file://$page"
