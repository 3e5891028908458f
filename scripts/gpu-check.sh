#!/usr/bin/env bash
# Checks yardstick on a machine that has a GPU: what the emulated CUDA device cannot tell.
#
#   scripts/gpu-check.sh [--call A|B] [--only STEP,...] [--require STEP]... [--small] [--out DIR]
#                        [PROGRAMS]
#   scripts/gpu-check.sh --dry-run ...              prints the steps, and what the machine lacks
#   scripts/gpu-check.sh --list                     names the steps
#   scripts/gpu-check.sh --pack DIR                 collects what a machine without cargo needs
#
# PROGRAMS is a folder with what gpu-programs.sh names, as --pack makes it. The default is the
# folder of this script if they are there; else cargo builds them, with the profile that the
# environment variable PROFILE names (release). A packed folder checks a machine by
# DIR/gpu-check.sh.
#
#   --call      the steps of a list in gpu-steps.sh, for a machine that is lent for ten minutes at a
#               time. What has no time left is not begun
#   --only      these steps alone
#   --require   this step fails where it would be skipped
#   --small     small settings, for the emulated device: no figure of it means anything
#   --out       folder for gpu-check.json and gpu-check-logs.tar.gz (by default a new one). That of
#               an earlier check is continued: what passed is kept, what else was asked for is run
#
# A step that fails, or is stopped after its time, does not stop those after it. Both files are
# written anew after each step; the archive has the logs and the records of all runs. The end is a
# table, what was not shown, and the path of the JSON file; the exit status is 0 only if nothing
# failed. The steps are in gpu-steps.sh and gpu-speed.sh.
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
    sed -n '4,8s/^# *//p' "${BASH_SOURCE[0]}" >&2
    exit 2
}

# Runs a step, and notes its name, result, seconds and figure as a line of $work/results. A step is
# a function that is stopped by the first command that fails. It writes its figure with `figure`;
# `skip` ends it without a result.
run_step() {
    local current=$1 limit=$2 needs=$3 does=$4 result=fail start code text
    printf '%-22s ' "$current"
    start=$EPOCHREALTIME
    step_ends=$((EPOCHSECONDS + limit))
    [ "$step_ends" -le "$call_ends" ] || step_ends=$call_ends
    rm -f "$work/$current.figure" "$work/$current.json"
    # The words of the row are a function and its arguments.
    # shellcheck disable=SC2086
    (set -e; skip_without "$needs"; $does) >"$work/$current.log" 2>&1
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
    # In place of that of an earlier call.
    awk -F '\t' -v name="$current" '$1 != name' "$work/results" >"$work/other-results"
    printf '%s\t%s\t%s\t%s\n' "$current" "$result" "$(seconds_since "$start")" \
        "$text" >>"$work/other-results"
    mv "$work/other-results" "$work/results"
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
    if [ "$1" = "$TIMED_OUT" ]; then
        echo "over its time limit of $limit s"
    else
        echo "exit code $1"
    fi
}

seconds_since() {
    awk -v start="$1" -v end="$EPOCHREALTIME" 'BEGIN { printf "%.1f", end - start }'
}

# The rows of the steps that were asked for, in the order of the call, or of all steps.
chosen_steps() {
    local names=()
    case $call in
        A) names=("${CALL_A[@]}") ;;
        B) names=("${CALL_B[@]}") ;;
        *) mapfile -t names < <(list_steps) ;;
    esac
    awk -v only=",$only," 'NR == FNR { row[$1] = $0; next }
        only == ",," || index(only, "," $1 ",") { print row[$1] }' \
        <(steps) <(printf '%s\n' "${names[@]}")
}

# Ends with 2 unless each step that --only and --require name is one that will run.
check_names() {
    local name chosen
    chosen=$(chosen_steps | awk '{ print $1 }')
    [ -n "$chosen" ] || usage "no step is to run: see --list"
    for name in ${only//,/ } ${required//,/ }; do
        grep -qxF "$name" <<<"$chosen" || usage "no step $name is to run: see --list"
    done
}

# Opens the folder for results: a new or empty one, or that of an earlier check.
open_out() {
    [ -n "$out" ] || out=$(mktemp -d "${TMPDIR:-/tmp}/gpu-check.XXXXXX") || return
    mkdir -p "$out" && out=$(cd "$out" && pwd) || return
    if [ -e "$out/gpu-check-logs.tar.gz" ]; then
        continue_check
    elif [ -n "$(ls -A "$out")" ]; then
        echo "gpu-check: $out is not empty, and has no check that could be continued" >&2
        return 2
    else
        identity >"$work/identity" && : >"$work/results"
    fi
}

# Unpacks an earlier check: its results, and what its steps left for others. The machine is asked
# again, and runs are put aside: one may have been interrupted.
continue_check() {
    tar --extract --gzip --directory "$work" --file "$out/gpu-check-logs.tar.gz" || return
    rm -f "$work/devices.json"
    if ! cmp --silent "$work/identity" <(identity); then
        echo "gpu-check: $out has a check of another program, or another machine:" \
            "$(tr '\n' ' ' <"$work/identity")and not $(identity | tr '\n' ' ')" >&2
        return 2
    fi
    [ ! -e "$work/runs" ] || mv "$work/runs" "$work/runs-before-$EPOCHSECONDS"
}

# What two calls of a check have in common.
identity() {
    note_devices
    "$yardstick" --version
    echo "small: $small"
    json "$work/devices.json" cuda.devices.0.name
}

has_passed() {
    awk -F '\t' -v name="$1" '$1 == name && $2 == "pass" { found = 1 } END { exit !found }' \
        "$work/results"
}

run_steps() {
    local name limit needs does
    # Steps must not read the rows.
    while read -r name limit needs does <&3; do
        has_passed "$name" && continue
        if [ "$EPOCHSECONDS" -ge "$call_ends" ]; then
            printf '%-22s no time left in this call\n' "$name"
            continue
        fi
        ! $small || limit=$((limit > SMALL_LIMIT ? limit : SMALL_LIMIT))
        run_step "$name" "$limit" "$needs" "$does"
        save_results
    done 3< <(chosen_steps)
}

# Prints each step with its limit, and what this machine lacks for it.
dry_run() {
    local name limit needs lack problem
    note_devices
    name=$(json "$work/devices.json" cuda.devices.0.name)
    problem=$(json "$work/devices.json" cuda.unusable)
    echo "GPU: ${name:-none, so that every step would fail: ${problem:-no device is listed}}"
    [ -z "$packed" ] || echo "pack: $(mebibytes "$packed") MiB of at most $PACK_MAX"
    printf '\n%-22s %8s  %s\n' step 'limit s' 'needs'
    while read -r name limit needs _; do
        lack=$(lacking_of "$needs" | paste --serial --delimiters ';')
        printf '%-22s %8s  %s\n' "$name" "$limit" "$needs${lack:+ (skipped here: $lack)}"
    done < <(chosen_steps)
}

small=false call='' only='' required='' out='' pack_to='' is_dry=false programs=''
while [ $# -gt 0 ]; do
    case $1 in
        --small) small=true ;;
        --call) call=${2-} && shift ;;
        --only) only=${2-} && shift ;;
        --require) required+=,${2-} && shift ;;
        --out) out=${2-} && shift ;;
        --pack) pack_to=${2-} && shift ;;
        --dry-run) is_dry=true ;;
        --list) list_steps && exit ;;
        -*) usage ;;
        *) programs=$1 ;;
    esac
    shift || usage
done
if [ -n "$pack_to" ]; then
    pack "$pack_to"
    exit
fi

[[ $call =~ ^[AB]?$ ]] || usage
check_names
find_programs "$programs" || exit
choose_settings
# Logs, runs, and what steps leave for others.
work=$(mktemp -d "${TMPDIR:-/tmp}/gpu-check-work.XXXXXX") || exit
trap 'rm -rf "$work"' EXIT
if $is_dry; then
    dry_run
    exit
fi

open_out || exit
call_ends=$((EPOCHSECONDS + CALL_STEPS_MAX))
# Without --call there is no such end.
[ -n "$call" ] || call_ends=$((EPOCHSECONDS + 1000000))
run_steps
table
summary
[ "$(count fail)" = 0 ]
