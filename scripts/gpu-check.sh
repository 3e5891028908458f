#!/usr/bin/env bash
# Checks yardstick on a machine that has a GPU: what the emulated CUDA device cannot tell.
#
#   scripts/gpu-check.sh [--quick] [--small] [--only STEP,...] [--out DIR] [PROGRAMS]
#   scripts/gpu-check.sh --list         names the steps
#   scripts/gpu-check.sh --pack DIR     collects what a machine without cargo needs
#
# PROGRAMS is a folder with yardstick, cuda_engine, cuda_step and cuda_timing, as --pack makes it.
# The default is the folder of this script if they are there; else cargo builds them, with the
# profile that the environment variable PROFILE names (release). A packed folder checks a machine
# by DIR/gpu-check.sh.
#
#   --quick   no benchmark
#   --small   small settings, for the emulated device: no figure of it means anything
#   --only    these steps alone
#   --out     empty folder for logs, runs and gpu-check.json (by default a new one)
#
# A step that fails does not stop the others. The end is a table, and a JSON file whose path is
# printed; the exit status is 0 only if nothing failed. Steps are in gpu-steps.sh.
set -uo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=scripts/gpu-programs.sh
. "$here/gpu-programs.sh"
# shellcheck source=scripts/gpu-steps.sh
. "$here/gpu-steps.sh"

usage() {
    sed -n '4,6s/^# *//p' "${BASH_SOURCE[0]}" >&2
    exit 2
}

# Runs a step, and notes its name, result, seconds and figure as a line of $out/results. A step is
# a function that is stopped by the first command that fails. It writes its figure with `figure`;
# `skip` ends it without a result.
run_step() {
    local current=$1 result=fail start code text
    printf '%-22s ' "$current"
    start=$EPOCHREALTIME
    (set -e; step "$current") >"$out/$current.log" 2>&1
    code=$?
    case $code in
        0) result=pass ;;
        "$SKIPPED") result=skip ;;
    esac
    text=$(figure_of "$current" "$result" "$code")
    printf '%s\t%s\t%s\t%s\n' "$current" "$result" "$(seconds_since "$start")" "$text" \
        >>"$out/results"
    echo "$result"
}

# The figure that a step wrote; of one that failed without, the last error of its log.
figure_of() {
    local name=$1 result=$2 code=$3 log="$out/$1.log" text=''
    if [ -s "$out/$name.figure" ]; then
        text=$(cat "$out/$name.figure")
    elif [ "$result" = fail ]; then
        text="exit code $code: $(grep -h '^error' "$log" | tail -n 1)"
        [ "$text" != "exit code $code: " ] || text+=$(tail -n 1 "$log")
    fi
    tr '\t\n' '  ' <<<"${text:0:200}" | sed 's/ *$//'
}

seconds_since() {
    awk -v start="$1" -v end="$EPOCHREALTIME" 'BEGIN { printf "%.1f", end - start }'
}

table() {
    local name result seconds text
    printf '\n%-22s %-6s %8s  %s\n' step result seconds figure
    while IFS=$'\t' read -r name result seconds text; do
        printf '%-22s %-6s %8s  %s\n' "$name" "$result" "$seconds" "$text"
    done <"$out/results"
}

# A text as a JSON string.
quoted() {
    local text=$1
    text=${text//\\/\\\\}
    text=${text//\"/\\\"}
    printf '"%s"' "$(tr -d '\000-\037' <<<"$text")"
}

# A JSON file of a step, or null if the step did not write one.
document() {
    if [ -s "$out/$1" ]; then cat "$out/$1"; else echo null; fi
}

results_json() {
    local name result seconds text separator=''
    while IFS=$'\t' read -r name result seconds text; do
        printf '%s\n    {"name": %s, "result": "%s", "seconds": %s, "figure": %s}' "$separator" \
            "$(quoted "$name")" "$result" "$seconds" "$(quoted "$text")"
        separator=,
    done <"$out/results"
}

everything_json() {
    cat <<JSON
{
  "schema": 1,
  "version": $(quoted "$("$yardstick" --version 2>/dev/null | tr '\n' ' ')"),
  "host": $(quoted "$(uname -n)"),
  "unix_seconds": $EPOCHSECONDS,
  "small": $small,
  "quick": $quick,
  "steps": [$(results_json)
  ],
  "devices": $(document devices.json),
  "parity": $(document parity.json),
  "timing": $(document timing.json),
  "throughput": $(document throughput.json)
}
JSON
}

count() {
    awk -F '\t' -v result="$1" '$2 == result { n++ } END { print n + 0 }' "$out/results"
}

small=false quick=false only='' out='' programs=''
while [ $# -gt 0 ]; do
    case $1 in
        --small) small=true ;;
        --quick) quick=true ;;
        --only) only=${2-} && shift ;;
        --out) out=${2-} && shift ;;
        --list) list_steps && exit ;;
        --pack) [ $# = 2 ] || usage; pack "$2"; exit ;;
        -*) usage ;;
        *) programs=$1 ;;
    esac
    shift || usage
done

find_programs "$programs" || exit
choose_settings
[ -n "$out" ] || out=$(mktemp -d "${TMPDIR:-/tmp}/gpu-check.XXXXXX") || exit
mkdir -p "$out" && out=$(cd "$out" && pwd) || exit
# Runs that are there already would be resumed, and show nothing.
[ -z "$(ls -A "$out")" ] || { echo "gpu-check: $out is not empty" >&2; exit 2; }
: >"$out/results"

for name in $(list_steps); do
    if [ -z "$only" ] || [[ ,$only, == *,$name,* ]]; then
        run_step "$name"
    fi
done

everything_json >"$out/gpu-check.json"
table
printf '\n%s passed, %s failed, %s skipped: %s\n' \
    "$(count pass)" "$(count fail)" "$(count skip)" "$out/gpu-check.json"
[ -s "$out/results" ] && [ "$(count fail)" = 0 ]
