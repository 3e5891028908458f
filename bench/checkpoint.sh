#!/usr/bin/env bash
# Saves, restores and stalls of training compared with torch.distributed.checkpoint and dd: see
# bench/checkpoint.py. PyTorch is installed into .venv-torch.
set -euo pipefail
cd "$(dirname "$0")/.."

if [ ! -x .venv-torch/bin/python ]; then
    python3 -m venv .venv-torch
    .venv-torch/bin/pip install --quiet numpy setuptools torch
fi
cargo build --release --quiet
exec .venv-torch/bin/python bench/checkpoint.py "$@"
