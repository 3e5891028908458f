#!/usr/bin/env bash
# yardstick compared with PyTorch, eager and compiled, on the CPU: see bench/cpu_vs_torch.py. Runs
# the first row of its table, or all rows with --all. PyTorch is installed into .venv-torch.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/bench.sh
. scripts/bench.sh

with_torch bench/cpu_vs_torch.py "$@"
