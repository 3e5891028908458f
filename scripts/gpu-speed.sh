# The steps of scripts/gpu-check.sh that measure speed.
# shellcheck shell=bash
# shellcheck disable=SC2154  # variables are shared with gpu-check.sh

# Longest time of a row of the benchmark, in seconds: a machine may be lent for ten minutes.
ROW_LIMIT=540

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
    { echo '['; sed 's/.*/"&",/; $s/,$//' "$table"; echo ']'; } >"$work/timing.json"
    figure "$(sed -n 's/^measured on this machine: //p' "$table")"
}

# GPT-2 124M in bf16 with the largest micro-batch of the list that the memory takes.
tokens_per_second() {
    local micro code said=$work/$current.stderr
    for micro in "${micro_batches[@]}"; do
        code=0
        train "throughput-$micro" --workload gpt2-124m --device cuda --steps "$throughput_steps" \
            --set precision.compute=bf16 --set "batch.micro_sequences=$micro" \
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
    local micro=$1 rate mfu
    rate=$(record "throughput-$micro" tokens_per_second.step.total)
    mfu=$(record "throughput-$micro" mfu_causal)
    [ -n "$rate" ] || fail "the record has no tokens per second"
    printf '{"workload": "gpt2-124m", "compute": "bf16", "micro_batch": %s, "tokens": %s, ' \
        "$micro" "$gpt2_tokens" >"$work/throughput.json"
    printf '"tokens_per_second": %s, "mfu_causal": %s}\n' "$rate" "${mfu:-null}" \
        >>"$work/throughput.json"
    figure "$(printf '%.0f' "$rate") tokens/s, mfu_causal ${mfu:-unknown}," \
        "micro-batch $micro x $gpt2_tokens"
}

# against_torch ROW: a row of the benchmark against PyTorch. If its time is over, its log has what
# was measured.
against_torch() {
    local log=$work/$current.table code=0 ratio python=${PYTHON:-python3}
    has_torch "$python" || skip "no PyTorch that computes on this device, by $python"
    local micro=${torch_micro[$1]-} memory
    note_devices
    memory=$(json "$work/devices.json" cuda.devices.0.memory_bytes)
    [ "${memory:-0}" -ge 80000000000 ] || micro=''
    LD_LIBRARY_PATH=$own_library_path timed "$ROW_LIMIT" "$python" "$(torch_benchmark)" \
        --row "$1" --yardstick "$yardstick" --device "$torch_device" "${torch[@]}" \
        ${micro:+--torch-micro "$micro" --our-micro "$micro"} \
        >"$log" 2>&1 || code=$?
    cat "$log"
    [ "$code" != "$TIMED_OUT" ] || exit "$code"
    ratio=$(grep '^ratio' "$log") || fail "$(tail -n 1 "$log")"
    [ "$code" = 0 ] || $small || fail "$ratio"
    figure "$ratio"
}

has_torch() {
    LD_LIBRARY_PATH=$own_library_path "$1" -c \
        'import sys, torch; torch.zeros(1, device=sys.argv[1])' "$torch_device"
}

# The script is beside this file in a packed folder.
torch_benchmark() {
    if [ -e "$here/gpu_vs_torch.py" ]; then
        echo "$here/gpu_vs_torch.py"
    else
        echo "$here/../bench/gpu_vs_torch.py"
    fi
}
