#!/usr/bin/env bash
# Saves, restores and stalls of training compared with torch.distributed.checkpoint and dd: see
# bench/checkpoint.py. PyTorch is installed into .venv-torch.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/bench.sh
. scripts/bench.sh

with_torch bench/checkpoint.py "$@"
