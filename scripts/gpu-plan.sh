# Functions for scripts/gpu-check.sh: its plan, which is gpu-plan.txt, and what a machine lacks.
# shellcheck shell=bash
# shellcheck disable=SC2034,SC2154  # variables are shared with gpu-check.sh

# Longest time of a call's steps, in seconds: of 600, with time to print and to copy.
CALL_STEPS_MAX=570

# The rows of the plan.
plan() {
    sed -e '/^#/d' -e '/^$/d' "$here/gpu-plan.txt"
}

list_steps() {
    plan | awk '{ print $2 }'
}

# The rows that were asked for.
chosen_rows() {
    plan | awk -v call="$call" -v only=",$only," '
        (call == "" || $1 == call) && (only == ",," || index(only, "," $2 ","))'
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

# Prints the plan: each step with its times, and what this machine lacks for it.
dry_run() {
    local number name expected limit needs
    about_machine
    printf '\n%4s  %-20s %10s %8s  %s\n' call step 'expected s' 'limit s' 'needs'
    while read -r number name expected limit needs _; do
        printf '%4s  %-20s %10s %8s  %s\n' "$number" "$name" "$expected" "$limit" \
            "$(about_needs "$needs")"
    done < <(chosen_rows)
    echo
    call_minutes
}

about_machine() {
    local name problem
    note_devices
    name=$(json "$work/devices.json" cuda.devices.0.name)
    if [ -n "$name" ]; then
        echo "GPU: $name ($(device_count)), driver for CUDA $(library_version cuda_driver)"
    else
        problem=$(json "$work/devices.json" cuda.unusable)
        echo "no GPU here, so that every step would fail: ${problem:-no device is listed}"
    fi
    [ -z "$packed" ] || echo "pack: $(mebibytes "$packed") MiB of at most $PACK_MAX"
}

# about_needs NEEDS: the needs, and those that are lacking.
about_needs() {
    local lack
    lack=$(lacking_of "$1" | paste --serial --delimiters ';' | sed 's/;/; /g')
    [ "$1" = - ] || printf '%s%s' "${1//,/, }" "${lack:+ (skipped here: $lack)}"
}

# The time of each call and of all, and a warning of a call that takes too long.
call_minutes() {
    chosen_rows | awk -v most="$CALL_STEPS_MAX" '
        !($1 in sum) { calls[++n] = $1 }
        { sum[$1] += $3; steps[$1]++; all += $3 }
        END {
            for (i = 1; i <= n; i++) {
                call = calls[i]
                printf "call %d: %d steps, %.1f minutes\n", call, steps[call], sum[call] / 60
                if (sum[call] > most)
                    printf "warning: call %d takes more than %.1f minutes\n", call, most / 60
            }
            printf "all: %d steps in %d calls, %.1f minutes\n", NR, n, all / 60
        }'
}
