#!/usr/bin/env bash
# Runs one group of work within a budget of time, and says how much of it was used.
#
#   scripts/budget.sh NAME SECONDS COMMAND...
#
# Past the budget the command and its children are stopped, and the exit status is 124.
set -uo pipefail

name=$1
budget_seconds=$2
shift 2

printf '== %s: at most %s s\n' "$name" "$budget_seconds"
# `timeout` runs the command in a process group of its own, out of the terminal's reach: an
# interrupt is handed on by hand.
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
