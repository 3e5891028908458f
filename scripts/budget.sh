#!/usr/bin/env bash
# Runs a group of tests with a time limit, and prints how much of it was used.
#
#   scripts/budget.sh NAME COMMAND...
#
# The limit is 1.5 times the seconds of NAME in tests/times.toml, or in the file $TIMES, multiplied
# by $BUDGET_FACTOR, for a machine that others use too. After the limit the command and its children
# are killed, and the exit status is 124.
set -uo pipefail

name=$1
shift
times=${TIMES:-$(dirname "$0")/../tests/times.toml}
seconds=$(sed -n "s/^$name *= *\([0-9.]*\).*/\1/p" "$times")
if [ -z "$seconds" ]; then
    printf '== %s: FAILED, no seconds of it in %s\n' "$name" "$times"
    exit 2
fi
limit=$(awk -v seconds="$seconds" -v factor="${BUDGET_FACTOR:-1}" \
    'BEGIN { print 1.5 * seconds * factor }')

printf '== %s: at most %s s\n' "$name" "$limit"
# `timeout` runs the command in its own process group, which gets no signal from the terminal, so
# interrupts are forwarded.
timeout --kill-after=10 "$limit" "$@" </dev/null &
child=$!
trap 'kill -TERM "$child" 2>/dev/null' INT TERM
wait "$child"
status=$?
if [ "$status" = 124 ] || [ "$status" = 137 ]; then
    printf '== %s: FAILED, stopped after its budget of %s s\n' "$name" "$limit"
else
    printf '== %s: %s s of %s s, status %s\n' "$name" "$SECONDS" "$limit" "$status"
fi
exit "$status"
