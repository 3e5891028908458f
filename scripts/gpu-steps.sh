# The steps of scripts/gpu-check.sh. Each runs in a process of its own with `set -e` and with its
# output in a log; it may write a figure, and `skip`.
# shellcheck shell=bash
# shellcheck disable=SC2154  # variables are shared with gpu-check.sh

# Exit code of a step that cannot be done on this machine.
SKIPPED=77
# Largest relative difference of the loss of any step from that of the processor in f32.
F32_BOUND=1e-4
BF16_BOUND=1e-2
# Longest time of one program, in seconds.
LIMIT=300

list_steps() {
    printf '%s\n' devices update-tests engine-tests \
        smoke-f32 smoke-bf16 llama-smoke-f32 llama-smoke-bf16 \
        gpt2-loss-falls gpt2-rerun resume-f32 resume-bf16 cudnn-engine-tests cudnn-gpt2 \
        nccl-one-rank nccl-two-ranks \
        memcheck racecheck
    $quick || printf '%s\n' kernel-timing tokens-per-second
}

# step NAME: runs it.
step() {
    case $1 in
        devices) devices ;;
        update-tests) tests "$cuda_step" ;;
        engine-tests) tests "$cuda_engine" --skip cudnn ;;
        cudnn-engine-tests) cudnn_engine_tests ;;
        cudnn-gpt2) cudnn_gpt2 ;;
        *smoke-f32) parity "${1%-f32}" f32 "$F32_BOUND" ;;
        *smoke-bf16) parity "${1%-bf16}" bf16 "$BF16_BOUND" ;;
        gpt2-loss-falls) gpt2_loss_falls ;;
        gpt2-rerun) gpt2_rerun ;;
        resume-*) resume "${1#resume-}" ;;
        nccl-one-rank) nccl_one_rank ;;
        nccl-two-ranks) nccl_two_ranks ;;
        memcheck | racecheck) sanitizer "$1" ;;
        kernel-timing) kernel_timing ;;
        tokens-per-second) tokens_per_second ;;
    esac
}

# Sets what differs between a GPU and the emulated device, which computes slowly.
choose_settings() {
    smoke=() gpt2=() resume_steps=20 micro_batches=(64 32 16 8) timing=()
    gpt2_tokens=1024 throughput_steps=30
    if $small; then
        smoke=(--set batch.sequence_tokens=32 --set batch.micro_sequences=1
            --set batch.global_sequences=2)
        gpt2=(--set model.layers=2 --set model.width=64 --set model.heads=2
            --set model.feed_forward=256 --set model.vocabulary=512)
        resume_steps=6 micro_batches=(1000000 4) gpt2_tokens=32 throughput_steps=4
        timing=(--small)
    fi
}

figure() {
    printf '%s\n' "$*" | tee "$out/$current.figure"
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
    timeout "$LIMIT" "${launcher[@]}" "$yardstick" train --out "$out/runs/$run" \
        --set checkpoint.at_end=false --set telemetry.matmul_probe=0s "$@"
}

# record RUN PATH: a value of a run's record.
record() {
    "$yardstick" report --json "$out/runs/$1" >"$out/$current.record.json"
    json "$out/$current.record.json" "record.$2"
}

# Step and loss of each step of a run.
losses() {
    sed -n 's/.*"step":\([0-9]*\),"loss":\([^,]*\),.*/\1 \2/p' "$out/runs/$1/steps/r000000.jsonl"
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

devices() {
    "$yardstick" devices --json >"$out/devices.json"
    local problem
    problem=$(json "$out/devices.json" cuda.unusable)
    [ -z "$problem" ] || fail "$problem"
    figure "$(json "$out/devices.json" cuda.devices.0.name)," \
        "driver for CUDA $(json "$out/devices.json" cuda.versions.cuda_driver)"
}

# tests PROGRAM [FLAG...]: tests of a binary, on the device.
tests() {
    local log=$out/$current.tests
    if ! timeout "$LIMIT" "$@" >"$log" 2>&1; then
        cat "$log"
        fail "$(grep '^test result' "$log" || tail -n 1 "$log")"
    fi
    cat "$log"
    figure "$(sed -n 's/^test result: ok. \([0-9]* passed\).*/\1/p' "$log")"
}

# parity WORKLOAD FORMAT BOUND: losses of 50 steps against those of the processor in f32.
parity() {
    local workload=$1 format=$2 bound=$3 exact=$1-cpu found worst
    if [ ! -e "$out/runs/$exact/record.json" ]; then
        train "$exact" --workload "$workload" --steps 50 --device cpu "${smoke[@]}"
    fi
    train "$current" --workload "$workload" --steps 50 --device cuda \
        --set "precision.compute=$format" "${smoke[@]}"
    worst=$(difference "$current" "$exact") || fail "the runs have not the same steps"
    note_parity "$worst" "$bound"
    found="largest relative difference of a loss $worst (bound $bound)"
    is_below "$worst" "$bound" || fail "$found"
    figure "$found"
}

# Adds a line to the object of all differences.
note_parity() {
    printf '"%s": {"difference": %s, "bound": %s}\n' "$current" "$1" "$2" >>"$out/parity.lines"
    { echo '{'; sed '$!s/$/,/' "$out/parity.lines"; echo '}'; } >"$out/parity.json"
}

# gpt2_train RUN FLAG...: 20 steps of GPT-2 124M in bf16.
gpt2_train() {
    train "$@" --workload gpt2-124m --device cuda --steps 20 --set precision.compute=bf16 \
        --set batch.micro_sequences=4 --set batch.global_sequences=4 \
        --set "batch.sequence_tokens=$gpt2_tokens" --set schedule.warmup_steps=5 "${gpt2[@]}"
}

gpt2_loss_falls() {
    gpt2_train gpt2
    local fall
    fall=$(losses gpt2 | awk 'NR <= 3 { first += $2 } NR > 17 { last += $2 }
        END { if (NR != 20) exit 1; printf "%.4f %.4f", first / 3, last / 3 }')
    is_below "${fall#* }" "${fall% *}" || fail "mean loss of the first and last 3 steps: $fall"
    figure "mean loss of the first and last 3 of 20 steps: $fall"
}

gpt2_rerun() {
    [ -e "$out/runs/gpt2/record.json" ] || gpt2_train gpt2
    gpt2_train gpt2-rerun
    same_bits gpt2 gpt2-rerun
    figure "losses and weights of 20 steps are bit-identical"
}

# Skips unless this machine has a cuDNN that is new enough.
need_cudnn() {
    [ -s "$out/devices.json" ] || "$yardstick" devices --json >"$out/devices.json"
    local found
    found=$(json "$out/devices.json" cuda.versions.cudnn)
    [ -n "$found" ] || skip "no cuDNN on this machine, or one that is too old"
}

# Losses and gradients with cuDNN's attention against the processor's and our kernels'.
cudnn_engine_tests() {
    need_cudnn
    tests "$cuda_engine" cudnn
}

# Losses with cuDNN's attention against those with ours; and twice the same bits.
cudnn_gpt2() {
    need_cudnn
    [ -e "$out/runs/gpt2/record.json" ] || gpt2_train gpt2
    gpt2_train cudnn --set run.attention=cudnn
    local worst version
    worst=$(difference cudnn gpt2) || fail "the runs have not the same steps"
    is_below "$worst" "$BF16_BOUND" || fail "losses differ from those of our kernels by $worst"
    gpt2_train cudnn-rerun --set run.attention=cudnn
    same_bits cudnn cudnn-rerun
    version=$(record cudnn environment.cuda.cudnn)
    figure "cuDNN $version: losses differ from ours by $worst (bound $BF16_BOUND);" \
        "a rerun is bit-identical"
}

# resume FORMAT: a run that was killed and resumed ends as one that was not.
resume() {
    local flags=(--workload smoke --device cuda --set "precision.compute=$1"
        --steps "$resume_steps" "${smoke[@]}") code=0
    train "$current-whole" "${flags[@]}"
    flags+=(--checkpoint-every 2steps)
    train "$current-killed" "${flags[@]}" --inject "kill@step=$((resume_steps - 1))" || code=$?
    [ "$code" = 137 ] || fail "the run that was to be killed ended with $code"
    train "$current-killed" "${flags[@]}"
    same_bits "$current-whole" "$current-killed"
    figure "bit-identical after a kill in step $((resume_steps - 1)) of $resume_steps"
}

# nccl_train RUN FLAG...: ten steps of smoke, the same on any number of ranks.
nccl_train() {
    train "$@" --workload smoke --device cuda --steps 10 "${smoke[@]}" \
        --set batch.micro_sequences=1
}

# Fails or skips unless this machine has NCCL, of at least a version.
need_nccl() {
    local found
    [ -s "$out/devices.json" ] || "$yardstick" devices --json >"$out/devices.json"
    found=$(json "$out/devices.json" cuda.versions.nccl)
    [ -n "$found" ] || skip "no NCCL on this machine"
    [ "$(printf '%s\n' "$1" "$found" | sort --version-sort | head -n 1)" = "$1" ] ||
        skip "NCCL $found, older than $1"
}

nccl_one_rank() {
    need_nccl 2
    nccl_train nccl-none
    nccl_train nccl-one --set collectives.backend=nccl
    local version
    version=$(record nccl-one environment.cuda.nccl)
    [ -n "$version" ] || fail "the run did not open NCCL"
    same_bits nccl-none nccl-one
    figure "NCCL $version, one rank: bit-identical to training without it"
}

# Two processes on one device, which NCCL refuses unless it is told to.
nccl_two_ranks() {
    need_nccl 2.30
    command -v mpirun >/dev/null || skip "no mpirun on this machine"
    export NCCL_MULTI_RANK_GPU_ENABLE=1
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none
    [ -e "$out/runs/nccl-none/record.json" ] || nccl_train nccl-none
    launcher=(mpirun -np 2)
    nccl_train nccl-two --set collectives.backend=nccl
    local worst
    worst=$(difference nccl-two nccl-none) || fail "the runs have not the same steps"
    is_below "$worst" "$F32_BOUND" || fail "two ranks differ from one by $worst"
    nccl_train nccl-sharded --set collectives.backend=nccl --set run.shard_optimizer=true
    same_bits nccl-two nccl-sharded
    figure "two ranks differ from one by $worst (bound $F32_BOUND); sharded: bit-identical"
}

# The path of NVIDIA's compute-sanitizer.
compute_sanitizer() {
    local program
    for program in "$(command -v compute-sanitizer)" /usr/local/cuda*/bin/compute-sanitizer; do
        if [ -x "$program" ]; then
            echo "$program"
            return
        fi
    done
    return 1
}

# sanitizer TOOL: one test of the engine under compute-sanitizer.
sanitizer() {
    local program
    program=$(compute_sanitizer) || skip "no compute-sanitizer on this machine"
    timeout "$LIMIT" "$program" --tool "$1" --error-exitcode 9 \
        "$cuda_engine" --test-threads 1 losses_and_every_gradient
    figure "no error in the engine's forward and backward"
}

kernel_timing() {
    timeout "$LIMIT" "$cuda_timing" --json "${timing[@]}" >"$out/timing.json"
    figure "$(printf 'device-to-device copy %.0f GB/s, fastest product %.1f TFLOP/s' \
        "$(json "$out/timing.json" copy_gigabytes_per_second)" \
        "$(json "$out/timing.json" fastest_product_teraflops)")"
}

# GPT-2 124M in bf16 with the largest micro-batch of the list that the memory takes.
tokens_per_second() {
    local micro code
    for micro in "${micro_batches[@]}"; do
        code=0
        train "throughput-$micro" --workload gpt2-124m --device cuda --steps "$throughput_steps" \
            --set precision.compute=bf16 --set "batch.micro_sequences=$micro" \
            --set "batch.global_sequences=$micro" --set "batch.sequence_tokens=$gpt2_tokens" \
            "${gpt2[@]}" || code=$?
        [ "$code" = 3 ] || break # 3: it does not fit
    done
    [ "$code" = 0 ] || fail "the run with a micro-batch of $micro ended with $code"
    note_throughput "$micro"
}

note_throughput() {
    local micro=$1 rate mfu
    rate=$(record "throughput-$micro" tokens_per_second.step.total)
    mfu=$(record "throughput-$micro" mfu_causal)
    [ -n "$rate" ] || fail "the record has no tokens per second"
    printf '{"workload": "gpt2-124m", "compute": "bf16", "micro_batch": %s, "tokens": %s, ' \
        "$micro" "$gpt2_tokens" >"$out/throughput.json"
    printf '"tokens_per_second": %s, "mfu_causal": %s}\n' "$rate" "${mfu:-null}" \
        >>"$out/throughput.json"
    figure "$(printf '%.0f' "$rate") tokens/s, mfu_causal ${mfu:-unknown}," \
        "micro-batch $micro x $gpt2_tokens"
}
