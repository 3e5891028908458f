#!/usr/bin/env bash
# yardstick against PyTorch, eager and compiled, on the CPU: see bench/cpu_vs_torch.py. The default
# is the first row of its table; --all is every row. PyTorch lives in .venv-torch, made here.
set -euo pipefail
cd "$(dirname "$0")/.."

if [ ! -x .venv-torch/bin/python ]; then
    python3 -m venv .venv-torch
    .venv-torch/bin/pip install --quiet numpy setuptools torch
fi
cargo build --release --quiet
exec .venv-torch/bin/python bench/cpu_vs_torch.py "$@"
