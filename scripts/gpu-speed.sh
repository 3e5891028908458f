# The steps of scripts/gpu-check.sh that measure speed.
# shellcheck shell=bash
# shellcheck disable=SC2034,SC2154  # variables are shared with gpu-check.sh

# The time of every op in a step of GPT-2 124M in bf16, and the rates that were measured beside it.
kernel_timing() {
    local table=$work/$current.table
    train kernel-timing --workload gpt2-124m --device cuda --steps 3 --profile-step 3 \
        --set precision.compute=bf16 --set "batch.micro_sequences=$timed_sequences" \
        --set "batch.global_sequences=$timed_sequences" \
        --set "batch.sequence_tokens=$gpt2_tokens" "${gpt2[@]}" >"$table"
    cat "$table"
    grep -q '^ *attention backward ' "$table" || fail "no time of attention"
    # Lines of a table of numbers have nothing that JSON escapes.
    { echo '['; sed 's/.*/"&",/; $s/,$//' "$table"; echo ']'; } >"$work/$current.json"
    figure "$(sed -n 's/^measured on this machine: //p' "$table")"
}

# tokens_per_second KEY=VALUE: GPT-2 124M in bf16 with this setting, and the largest micro-batch of
# the list that the memory takes.
tokens_per_second() {
    local micro code said=$work/$current.stderr
    for micro in "${micro_batches[@]}"; do
        code=0
        train "$current-$micro" --workload gpt2-124m --device cuda --steps "$throughput_steps" \
            --set "$1" --set precision.compute=bf16 \
            --set "batch.micro_sequences=$micro" \
            --set "batch.global_sequences=$micro" --set "batch.sequence_tokens=$gpt2_tokens" \
            "${gpt2[@]}" 2>"$said" || code=$?
        cat "$said"
        if [ "$code" != 3 ] || ! says_no_memory "$said"; then
            break
        fi
    done
    [ "$code" = 0 ] || fail "micro-batch $micro: exit code $code: $(grep '^error' "$said")"
    note_throughput "$micro"
}

note_throughput() {
    local micro=$1 rate mfu flops
    rate=$(record "$current-$micro" tokens_per_second.step.total)
    mfu=$(record "$current-$micro" mfu_causal)
    flops=$(record "$current-$micro" rank_flops_per_second.causal)
    [ -n "$rate" ] || fail "the record has no tokens per second"
    printf '{"workload": "gpt2-124m", "compute": "bf16", "micro_batch": %s, "tokens": %s, ' \
        "$micro" "$gpt2_tokens" >"$work/$current.json"
    printf '"tokens_per_second": %s, "flops_per_second": %s, "mfu_causal": %s}\n' "$rate" \
        "${flops:-null}" "${mfu:-null}" >>"$work/$current.json"
    figure "$(printf '%.0f' "$rate") tokens/s, $(teraflops "$flops") TFLOP/s," \
        "mfu_causal ${mfu:-unknown}, micro-batch $micro x $gpt2_tokens"
}

teraflops() {
    awk -v flops="${1:-0}" 'BEGIN { printf "%.3g", flops / 1e12 }'
}

# The kernels of a micro-batch of GPT-2 124M under NVIDIA's profiler: time, and bytes of memory.
kernel_profile() {
    local csv=$work/$current.csv said=$work/$current.said code=0
    local metrics=gpu__time_duration.sum,dram__bytes_read.sum,dram__bytes_write.sum
    rm -f "$csv"
    launcher=("$(find_tool ncu)" --csv --page raw --print-units base --log-file "$csv"
        --clock-control none --metrics "$metrics")
    train kernel-profile --workload gpt2-124m --device cuda --steps 1 \
        --set precision.compute=bf16 --set "batch.micro_sequences=$timed_sequences" \
        --set "batch.global_sequences=$timed_sequences" \
        --set "batch.sequence_tokens=$gpt2_tokens" "${gpt2[@]}" >"$said" 2>&1 || code=$?
    cat "$said" "$csv" || true
    ! grep -qs ERR_NVGPUCTRPERM "$said" "$csv" ||
        skip "the driver lets only administrators profile (ERR_NVGPUCTRPERM)"
    [ "$code" = 0 ] || exit "$code"
    python3 "$(benchmark ncu_kernels.py)" "$csv" >"$work/$current.json"
    figure "$(json "$work/$current.json" all.launches) launches," \
        "$(json "$work/$current.json" all.milliseconds) ms;" \
        "the head's product by $(json "$work/$current.json" head_product.kernels.0)"
}

# against_torch ROW MODE STEPS: a row of the benchmark against PyTorch, compiled in this mode. If
# its time is over, its log has what was measured.
against_torch() {
    local log=$work/$current.table code=0 ratio
    local micro=${torch_micro[$1]-} memory
    memory=$(json "$work/devices.json" cuda.devices.0.memory_bytes)
    [ "${memory:-0}" -ge 80000000000 ] || micro=''
    LD_LIBRARY_PATH=$own_library_path timed "${PYTHON:-python3}" "$(benchmark gpu_vs_torch.py)" \
        --row "$1" --torch-mode "$2" --steps "$3" --json "$work/$current.json" \
        --yardstick "$yardstick" --device "$torch_device" "${torch[@]}" \
        ${micro:+--torch-micro "$micro" --our-micro "$micro"} \
        >"$log" 2>&1 || code=$?
    cat "$log"
    [ "$code" != "$TIMED_OUT" ] || exit "$code"
    ratio=$(grep '^ratio' "$log") || fail "$(grep . "$log" | tail -n 1)"
    ratio+="; $(grep '^cuBLASLt' "$log")$(least_ratio "$1")"
    [ "$code" = 0 ] || $small || fail "$ratio"
    figure "$ratio"
}

# least_ratio ROW: the ratio to the fastest mode of PyTorch, where several were measured.
least_ratio() {
    local file
    for file in "$work/torch-$1"*.json; do
        json "$file" ratio
    done | sort --general-numeric-sort | awk '
        NR == 1 { least = $1 }
        END { if (NR > 1) printf "; least of %d modes %.2f", NR, least }'
}

has_torch() {
    LD_LIBRARY_PATH=$own_library_path timeout --kill-after 10 120 "${PYTHON:-python3}" -c \
        'import sys, torch; torch.zeros(1, device=sys.argv[1])' "$torch_device" >/dev/null 2>&1
}

# benchmark FILE: the path of a script, which is beside this file in a packed folder.
benchmark() {
    if [ -e "$here/$1" ]; then
        echo "$here/$1"
    else
        echo "$here/../bench/$1"
    fi
}
