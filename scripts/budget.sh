#!/usr/bin/env bash
# Runs a command with a time limit, and prints how much of it was used.
#
#   scripts/budget.sh NAME SECONDS COMMAND...
#
# After the limit the command and its children are killed, and the exit status is 124.
# $BUDGET_FACTOR multiplies the limits, for a machine that others use too.
set -uo pipefail

name=$1
budget_seconds=$(awk -v limit="$2" -v factor="${BUDGET_FACTOR:-1}" 'BEGIN { print limit * factor }')
shift 2

printf '== %s: at most %s s\n' "$name" "$budget_seconds"
# `timeout` runs the command in its own process group, which gets no signal from the terminal, so
# interrupts are forwarded.
timeout --kill-after=10 "$budget_seconds" "$@" </dev/null &
child=$!
trap 'kill -TERM "$child" 2>/dev/null' INT TERM
wait "$child"
status=$?
if [ "$status" = 124 ] || [ "$status" = 137 ]; then
    printf '== %s: FAILED, stopped after its budget of %s s\n' "$name" "$budget_seconds"
else
    printf '== %s: %s s of %s s, status %s\n' "$name" "$SECONDS" "$budget_seconds" "$status"
fi
exit "$status"
