#!/usr/bin/env bash
# Checks yardstick on a machine that has a GPU: what the emulated CUDA device cannot tell.
#
#   scripts/gpu-check.sh [--quick] [--small] [--only STEP,...] [--require STEP]... [--out DIR]
#                        [PROGRAMS]
#   scripts/gpu-check.sh --list         names the steps
#   scripts/gpu-check.sh --pack DIR     collects what a machine without cargo needs
#
# PROGRAMS is a folder with what gpu-programs.sh names, as --pack makes it. The default is the
# folder of this script if they are there; else cargo builds them, with the profile that the
# environment variable PROFILE names (release). A packed folder checks a machine by
# DIR/gpu-check.sh.
#
#   --quick     no benchmark
#   --small     small settings, for the emulated device: no figure of it means anything
#   --only      these steps alone
#   --require   this step fails where it would be skipped
#   --out       empty folder for gpu-check.json and gpu-check-logs.tar.gz (by default a new one)
#
# A step that fails does not stop the others. Both files are written anew after each step; the
# archive has the logs and the records of all runs. The end is a table, what was not shown, and the
# path of the JSON file; the exit status is 0 only if nothing failed. Steps are in gpu-steps.sh.
set -uo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=scripts/gpu-programs.sh
. "$here/gpu-programs.sh"
# shellcheck source=scripts/gpu-results.sh
. "$here/gpu-results.sh"
# shellcheck source=scripts/gpu-runs.sh
. "$here/gpu-runs.sh"
# shellcheck source=scripts/gpu-speed.sh
. "$here/gpu-speed.sh"
# shellcheck source=scripts/gpu-steps.sh
. "$here/gpu-steps.sh"

usage() {
    [ $# = 0 ] || echo "gpu-check: $*" >&2
    sed -n '4,7s/^# *//p' "${BASH_SOURCE[0]}" >&2
    exit 2
}

# Runs a step, and notes its name, result, seconds and figure as a line of $work/results. A step is
# a function that is stopped by the first command that fails. It writes its figure with `figure`;
# `skip` ends it without a result.
run_step() {
    local current=$1 result=fail start code text
    printf '%-22s ' "$current"
    start=$EPOCHREALTIME
    (set -e; step "$current") >"$work/$current.log" 2>&1
    code=$?
    case $code in
        0) result=pass ;;
        "$SKIPPED") result=skip ;;
    esac
    text=$(figure_of "$current" "$result" "$code")
    if [ "$result" = skip ] && [[ ,$required, == *,$current,* ]]; then
        result=fail
        text="required, but skipped: $text"
    fi
    printf '%s\t%s\t%s\t%s\n' "$current" "$result" "$(seconds_since "$start")" "$text" \
        >>"$work/results"
    echo "$result"
}

# The figure that a step wrote; of one that failed without, the last error of its log.
figure_of() {
    local name=$1 result=$2 code=$3 log="$work/$1.log" text=''
    if [ -s "$work/$name.figure" ]; then
        text=$(cat "$work/$name.figure")
    elif [ "$result" = fail ]; then
        text=$(grep -h '^error' "$log" | tail -n 1)
        text="$(exit_code "$code"): ${text:-$(tail -n 1 "$log")}"
    fi
    tr '\t\n' '  ' <<<"${text:0:200}" | sed 's/ *$//'
}

exit_code() {
    if [ "$1" = "$TIMED_OUT" ]; then echo 'over its time limit'; else echo "exit code $1"; fi
}

seconds_since() {
    awk -v start="$1" -v end="$EPOCHREALTIME" 'BEGIN { printf "%.1f", end - start }'
}

# The steps that were asked for.
chosen_steps() {
    local name
    for name in $(list_steps); do
        if [ -z "$only" ] || [[ ,$only, == *,$name,* ]]; then
            echo "$name"
        fi
    done
}

# Ends with 2 unless each step that --only and --require name is one that will run.
check_names() {
    local name chosen
    chosen=$(chosen_steps)
    for name in ${only//,/ } ${required//,/ }; do
        grep -qxF "$name" <<<"$chosen" || usage "no step $name is to run: see --list"
    done
}

small=false quick=false only='' required='' out='' programs=''
while [ $# -gt 0 ]; do
    case $1 in
        --small) small=true ;;
        --quick) quick=true ;;
        --only) only=${2-} && shift ;;
        --require) required+=,${2-} && shift ;;
        --out) out=${2-} && shift ;;
        --list) list_steps && exit ;;
        --pack) [ $# = 2 ] || usage; pack "$2"; exit ;;
        -*) usage ;;
        *) programs=$1 ;;
    esac
    shift || usage
done

check_names
find_programs "$programs" || exit
choose_settings
[ -n "$out" ] || out=$(mktemp -d "${TMPDIR:-/tmp}/gpu-check.XXXXXX") || exit
mkdir -p "$out" && out=$(cd "$out" && pwd) || exit
[ -z "$(ls -A "$out")" ] || { echo "gpu-check: $out is not empty" >&2; exit 2; }
# Logs, runs, and what steps leave for others.
work=$(mktemp -d "${TMPDIR:-/tmp}/gpu-check-work.XXXXXX") || exit
trap 'rm -rf "$work"' EXIT

for name in $(chosen_steps); do
    run_step "$name"
    save_results
done
table
summary
[ "$(count fail)" = 0 ]
