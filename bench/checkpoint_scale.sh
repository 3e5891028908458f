#!/usr/bin/env bash
# Checkpoints of 16,384 simulated ranks on three tiers: size of the root manifest, time of the vote,
# of a restore's plan and of retention's; and the goodput that cadence and tiers can give, by Monte
# Carlo: see checkpoint/examples/checkpoint_scale. Fails when a limit is exceeded.
#
#     bench/checkpoint_scale.sh [RANKS] [FOLDER]
set -euo pipefail
cd "$(dirname "$0")/.."
cargo build --release --quiet --package yardstick-checkpoint --example checkpoint_scale
exec target/release/examples/checkpoint_scale "${1:-16384}" "${2:-/dev/shm}"
