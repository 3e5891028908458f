# Functions for the steps of scripts/gpu-check.sh: what a machine lacks, how a step ends, runs and
# their comparison.
# shellcheck shell=bash
# shellcheck disable=SC2034,SC2154  # variables are shared with gpu-check.sh

# Exit code of a step that cannot be done on this machine.
SKIPPED=77
# Least limit of a step with small settings, in seconds: the emulated device computes slowly.
SMALL_LIMIT=300
# Exit code of `timeout` where it stopped the program.
TIMED_OUT=124
# What yardstick says, with exit code 3, where memory does not suffice.
NO_MEMORY=("memory does not suffice" "has no room for"
    "bytes of free memory on the device" CUDA_ERROR_OUT_OF_MEMORY)

figure() {
    printf '%s\n' "$*" | tee "$work/$current.figure"
}

skip() {
    figure "$*"
    exit "$SKIPPED"
}

# fail TEXT: ends a step with its reason.
fail() {
    figure "$*"
    exit 1
}

# lacking NEED: says that this machine lacks it; nothing where it has it.
lacking() {
    local found
    case $1 in
        -) ;;
        torch) has_torch ||
            echo "no PyTorch that computes on this device, by ${PYTHON:-python3}" ;;
        nccl) [ -n "$(library_version nccl)" ] || echo "no NCCL on this machine" ;;
        hopper) [ "$(json "$work/devices.json" cuda.devices.0.compute_capability.major)" = 9 ] ||
            echo "no GPU of compute capability 9.0" ;;
        two-ranks)
            found=$(library_version nccl)
            [ "$(device_count)" -ge 2 ] || is_version "${found:-0}" 2.30 ||
                echo "fewer than two devices, and NCCL ${found:-none}: 2.30 is needed" ;;
        *) find_tool "$1" >/dev/null || echo "no $1 on this machine" ;;
    esac
}

# lacking_of NEEDS: what this machine lacks of a row's needs.
lacking_of() {
    local need
    for need in ${1//,/ }; do
        lacking "$need"
    done
}

library_version() {
    note_devices
    json "$work/devices.json" "cuda.versions.$1"
}

device_count() {
    note_devices
    grep -c '"ordinal"' "$work/devices.json"
}

# is_version FOUND LEAST: whether a version is at least another.
is_version() {
    [ "$(printf '%s\n' "$2" "$1" | sort --version-sort | head -n 1)" = "$2" ]
}

# find_tool NAME: the path of a program in PATH, in a CUDA toolkit, or of Nsight Compute alone.
find_tool() {
    local program
    for program in "$(command -v "$1")" /usr/local/cuda*/bin/"$1" /opt/nvidia/nsight-compute/*/"$1"
    do
        if [ -x "$program" ]; then
            echo "$program"
            return
        fi
    done
    return 1
}

# skip_without NEEDS: skips the step where this machine lacks something of its row.
skip_without() {
    local lack
    lack=$(lacking_of "$1")
    [ -z "$lack" ] || skip "${lack%%$'\n'*}"
}

# timed COMMAND...: stops it when the time of the step is over, with $TIMED_OUT.
timed() {
    local left=$((step_ends - EPOCHSECONDS))
    [ "$left" -gt 0 ] || return "$TIMED_OUT"
    timeout --kill-after 10 "$left" "$@"
}

# note_devices: what this machine has, asked once, and not for ever.
note_devices() {
    [ -s "$work/devices.json" ] ||
        timeout --kill-after 10 60 "$yardstick" devices --json >"$work/devices.json"
}

# json FILE PATH: a value of a JSON file by its path, as in a.b.0.c; empty where it is null. Without
# jq and Python the first value of the last key, which serves for what is read here.
json() {
    if command -v jq >/dev/null; then
        jq -r --arg path "$2" \
            'getpath($path | split(".") | map(tonumber? // .)) // empty' "$1"
    elif command -v python3 >/dev/null; then
        python3 - "$1" "$2" <<'PYTHON'
import json, sys
value = json.load(open(sys.argv[1]))
for key in sys.argv[2].split("."):
    value = value[int(key)] if isinstance(value, list) else value[key]
print("" if value is None else value)
PYTHON
    else
        sed -n "s/^ *\"${2##*.}\": \"\{0,1\}\([^\",{[]*\).*/\1/p" "$1" |
            sed -n '1{s/^null$//;p;}'
    fi
}

# train RUN FLAG...: trains into the run's folder, without what the checks do not need; behind the
# command in the array launcher, if there is one.
launcher=()
train() {
    local run=$1
    shift
    timed "${launcher[@]}" "$yardstick" train --out "$work/runs/$run" \
        --set checkpoint.at_end=false --set telemetry.matmul_probe=0s "$@"
}

# says_no_memory FILE: whether these messages tell of too little memory, and not of another thing
# that the machine lacks.
says_no_memory() {
    printf '%s\n' "${NO_MEMORY[@]}" | grep -qF -f - "$1"
}

# record RUN PATH: a value of a run's record.
record() {
    "$yardstick" report --json "$work/runs/$1" >"$work/$current.record.json"
    json "$work/$current.record.json" "record.$2"
}

# Step and loss of each step of a run.
losses() {
    sed -n 's/.*"step":\([0-9]*\),"loss":\([^,]*\),.*/\1 \2/p' "$work/runs/$1/steps/r000000.jsonl"
}

# difference RUN EXACT: the largest relative difference of a loss; fails unless both have the same
# steps.
difference() {
    paste <(losses "$1") <(losses "$2") | awk '
        NF != 4 || $1 != $3 { broken = 1; exit }
        { d = ($2 - $4) / $4; if (d < 0) d = -d; if (d > most) most = d }
        END { if (broken || NR == 0) exit 1; printf "%.3g", most }'
}

is_below() {
    awk -v figure="$1" -v bound="$2" 'BEGIN { exit !(figure < bound) }'
}

# same_bits RUN RUN: whether losses and weights of two runs are identical.
same_bits() {
    local digest values
    for digest in losses weights; do
        values=("$(record "$1" "fingerprint.$digest")" "$(record "$2" "fingerprint.$digest")")
        [ -n "${values[0]}" ] && [ "${values[0]}" = "${values[1]}" ] ||
            fail "the $digest of $1 and $2 differ"
    done
}
