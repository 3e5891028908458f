# Functions for scripts/gpu-check.sh: what it tells, from the lines of $work/results.
# shellcheck shell=bash
# shellcheck disable=SC2154  # variables are shared with gpu-check.sh

# Writes what is known so far: the check itself may be ended at any time.
save_results() {
    everything_json >"$out/.gpu-check.json" && mv "$out/.gpu-check.json" "$out/gpu-check.json"
    tar --create --gzip --directory "$work" --exclude checkpoints --file "$out/.logs" . &&
        mv "$out/.logs" "$out/gpu-check-logs.tar.gz"
}

# The lines of all results in the order of the steps: some are of other calls.
results() {
    awk -F '\t' 'NR == FNR { line[$1] = $0; next } $1 in line { print line[$1] }' \
        "$work/results" <(list_steps)
}

table() {
    local name result seconds text
    printf '\n%-22s %-6s %8s  %s\n' step result seconds figure
    while IFS=$'\t' read -r name result seconds text; do
        printf '%-22s %-6s %8s  %s\n' "$name" "$result" "$seconds" "$text"
    done < <(results)
}

# What a reader must not take for shown, and the counts.
summary() {
    local name result text not_run
    echo
    while IFS=$'\t' read -r name result _ text; do
        [ "$result" != skip ] || printf 'not shown: %s: %s\n' "$name" "$text"
    done < <(results)
    not_run=$(steps_not_run)
    [ -z "$not_run" ] || printf 'not run: %s\n' "${not_run//$'\n'/ }"
    printf '%s passed, %s failed, %s skipped, %s not run: %s\n' "$(count pass)" "$(count fail)" \
        "$(count skip)" "$(wc -w <<<"$not_run")" "$out/gpu-check.json"
}

# Steps of a whole check that have no result.
steps_not_run() {
    list_steps | grep -vxF -f <(cut -f 1 "$work/results")
}

count() {
    awk -F '\t' -v result="$1" '$2 == result { n++ } END { print n + 0 }' "$work/results"
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
    if [ -s "$work/$1" ]; then cat "$work/$1"; else echo null; fi
}

results_json() {
    local name result seconds text separator=''
    while IFS=$'\t' read -r name result seconds text; do
        printf '%s\n    {"name": %s, "result": "%s", ' "$separator" "$(quoted "$name")" "$result"
        printf '"seconds": %s, "figure": %s}' "$seconds" "$(quoted "$text")"
        separator=,
    done < <(results)
}

not_run_json() {
    local name separator=''
    for name in $(steps_not_run); do
        printf '%s%s' "$separator" "$(quoted "$name")"
        separator=', '
    done
}

# The rows of the benchmark against PyTorch, one for each mode that was run.
torch_json() {
    local file separator=''
    for file in "$work"/torch-*.json; do
        [ -s "$file" ] || continue
        printf '%s%s' "$separator" "$(cat "$file")"
        separator=', '
    done
}

everything_json() {
    cat <<JSON
{
  "schema": 3,
  "version": $(quoted "$("$yardstick" --version 2>/dev/null | tr '\n' ' ')"),
  "host": $(quoted "$(uname -n)"),
  "unix_seconds": $EPOCHSECONDS,
  "small": $small,
  "steps": [$(results_json)
  ],
  "not_run": [$(not_run_json)],
  "devices": $(document devices.json),
  "parity": $(document parity.json),
  "timing": $(document kernel-timing.json),
  "throughput": $(document tokens-per-second.json),
  "kernels": $(document kernel-profile.json),
  "torch": [$(torch_json)]
}
JSON
}
