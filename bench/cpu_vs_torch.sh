#!/usr/bin/env bash
# yardstick compared with PyTorch, eager and compiled, on the CPU: see bench/cpu_vs_torch.py. Runs
# the first row of its table, or all rows with --all. PyTorch is installed into .venv-torch.
set -euo pipefail
cd "$(dirname "$0")/.."

if [ ! -x .venv-torch/bin/python ]; then
    python3 -m venv .venv-torch
    .venv-torch/bin/pip install --quiet numpy setuptools torch
fi
cargo build --release --quiet
exec .venv-torch/bin/python bench/cpu_vs_torch.py "$@"
