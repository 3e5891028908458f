# The steps of scripts/gpu-check.sh. Each runs in a process of its own with `set -e` and with its
# output in a log; it may write a figure, and `skip`. Those that measure speed are in gpu-speed.sh.
# shellcheck shell=bash
# shellcheck disable=SC2034,SC2154  # variables are shared with gpu-check.sh

# What two calls run, each in less than ten minutes, the longest that some machines are lent at a
# time: correctness and our own speed, then speed beside PyTorch's, and where it goes.
CALL_A=(devices smoke-bf16 llama-smoke-bf16 engine-tests gpt2-loss-falls gpt2-rerun kernel-tests
    tokens-per-second kernel-timing wgmma-gpt2 tokens-wgmma tuned-gpt2 tokens-tuned)
CALL_B=(torch-124M torch-1.3B kernel-profile)
# Longest time of a call's steps, in seconds: of 600, with time to print and to copy.
CALL_STEPS_MAX=570

# All steps: the seconds after which it is stopped, and has failed; what a machine may lack, so that
# it is skipped (see `lacking`); a function with its arguments.
steps() {
    cat <<'STEPS'
devices               30 -                       devices
nvml                  60 -                       nvml
kernel-tests         200 -                       kernel_tests
engine-tests         150 -                       engine_tests
smoke-f32            100 -                       parity smoke f32
smoke-bf16           100 -                       parity smoke bf16
llama-smoke-f32      100 -                       parity llama-smoke f32
llama-smoke-bf16     100 -                       parity llama-smoke bf16
gpt2-loss-falls      100 -                       gpt2_loss_falls
gpt2-rerun           100 -                       gpt2_rerun
tokens-per-second    150 -                       tokens_per_second run.attention=flash
kernel-timing        100 -                       kernel_timing
wgmma-gpt2           150 hopper                  attention_gpt2 wgmma
tokens-wgmma         150 hopper                  tokens_per_second run.attention=wgmma
tuned-gpt2           150 -                       tuned_gpt2
tokens-tuned         150 -                       tokens_per_second run.tune_matmul=true
kernel-profile       150 ncu,python3             kernel_profile
torch-124M           540 torch                   against_torch 124M default 20
torch-124M-autotune  540 torch                   against_torch 124M max-autotune-no-cudagraphs 20
torch-1.3B           540 torch                   against_torch 1.3B default 8
torch-1.3B-autotune  560 torch                   against_torch 1.3B max-autotune-no-cudagraphs 8
nccl-tests           200 nccl                    nccl_tests
nccl-one-rank        100 nccl                    nccl_one_rank
nccl-two-ranks       150 nccl,two-ranks,mpirun   nccl_two_ranks
resume-f32           150 -                       resume f32
resume-bf16          150 -                       resume bf16
memcheck-engine      280 compute-sanitizer       sanitize_engine memcheck
racecheck-engine     280 compute-sanitizer       sanitize_engine racecheck
memcheck-attention   560 compute-sanitizer       sanitize_attention memcheck flash
racecheck-attention  560 compute-sanitizer       sanitize_attention racecheck flash
memcheck-wgmma       560 compute-sanitizer,hopper sanitize_attention memcheck wgmma
racecheck-wgmma      560 compute-sanitizer,hopper sanitize_attention racecheck wgmma
STEPS
}

list_steps() {
    steps | awk '{ print $1 }'
}

# Largest relative difference of the loss of any step from that of the processor in f32.
F32_BOUND=1e-4
BF16_BOUND=1e-2
# Tests without which the kernels of the presets in bf16 were not shown: heads of 64 and 128. Those
# of wgmma test its refusal where a GPU is not of Hopper.
TENSOR_TESTS=({flash,wgmma}_with_heads_of_{64,128})

# Sets what differs between a GPU and the emulated device, which computes slowly.
choose_settings() {
    smoke=() gpt2=() parity_steps=50 resume_steps=20
    micro_batches=(64 32 16 8) timed_sequences=32 torch=(--rounds 2)
    # Micro-batches that fill a GPU of 80 GB, where a search would take longer than the steps.
    declare -gA torch_micro=([124M]=32 [1.3B]=8)
    gpt2_tokens=1024 throughput_steps=30 torch_device=cuda
    if $small; then
        smoke=(--set batch.sequence_tokens=32 --set batch.micro_sequences=1
            --set batch.global_sequences=2)
        gpt2=(--set model.layers=2 --set model.width=64 --set model.heads=2
            --set model.feed_forward=256 --set model.vocabulary=512)
        # After 40 of so few tokens bf16 differs from f32 by more than the bound anywhere.
        parity_steps=40 resume_steps=6
        micro_batches=(1000000 4) gpt2_tokens=32 throughput_steps=4
        timed_sequences=2 torch=(--rounds 1 --tiny) torch_micro=() torch_device=cpu
    fi
}

devices() {
    note_devices
    local problem name
    problem=$(json "$work/devices.json" cuda.unusable)
    [ -z "$problem" ] || fail "$problem"
    name=$(json "$work/devices.json" cuda.devices.0.name)
    [ -n "$name" ] || fail "no CUDA device is listed"
    figure "$name," \
        "driver for CUDA $(json "$work/devices.json" cuda.versions.cuda_driver)"
}

# What NVML says of the GPU reaches the record.
nvml() {
    train nvml --workload smoke --steps 20 --device cuda "${smoke[@]}" \
        --set telemetry.hardware_interval=100ms
    local watts hertz
    watts=$(record nvml ranks.0.gpu.gauges.power_watts.mean)
    hertz=$(record nvml ranks.0.gpu.gauges.sm_clock_hertz.mean)
    [ -n "$watts" ] && [ -n "$hertz" ] || fail "NVML does not tell power and clock"
    figure "$watts W, multiprocessors at $hertz Hz"
}

# tests PROGRAM [FILTER]: all tests of a binary on the device, or those whose names have the filter;
# fails where there is none.
tests() {
    local log=$work/$current.tests code=0 passed
    timed "$@" >"$log" 2>&1 || code=$?
    cat "$log"
    [ "$code" != "$TIMED_OUT" ] || exit "$code"
    [ "$code" = 0 ] || fail "$(grep '^test result' "$log" || tail -n 1 "$log")"
    passed=$(sed -n 's/^test result: ok. \([1-9][0-9]* passed\).*/\1/p' "$log")
    [ -n "$passed" ] || fail "no test ran"
    figure "$passed"
}

engine_tests() {
    tests "$cuda_engine"
}

# The tests of every kernel, those of the update among them.
kernel_tests() {
    local name
    tests "$yardstick_models" cuda_tests::
    for name in "${TENSOR_TESTS[@]}"; do
        grep -q "::$name \.\.\. ok" "$work/$current.tests" || fail "the test $name did not run"
    done
}

# parity WORKLOAD FORMAT: losses of some steps against those of the processor in f32.
parity() {
    local workload=$1 format=$2 bound exact=$1-cpu found worst
    if [ "$format" = f32 ]; then bound=$F32_BOUND; else bound=$BF16_BOUND; fi
    if [ ! -e "$work/runs/$exact/record.json" ]; then
        train "$exact" --workload "$workload" --steps "$parity_steps" --device cpu "${smoke[@]}"
    fi
    train "$current" --workload "$workload" --steps "$parity_steps" --device cuda \
        --set "precision.compute=$format" "${smoke[@]}"
    worst=$(difference "$current" "$exact") || fail "the runs have not the same steps"
    note_parity "$worst" "$bound"
    found="largest relative difference of a loss $worst (bound $bound)"
    is_below "$worst" "$bound" || fail "$found"
    figure "$found"
}

# Adds a line to the object of all differences, in place of one of an earlier call.
note_parity() {
    [ ! -e "$work/parity.lines" ] || sed -i "/^\"$current\":/d" "$work/parity.lines"
    printf '"%s": {"difference": %s, "bound": %s}\n' "$current" "$1" "$2" >>"$work/parity.lines"
    { echo '{'; sed '$!s/$/,/' "$work/parity.lines"; echo '}'; } >"$work/parity.json"
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
    [ -e "$work/runs/gpt2/record.json" ] || gpt2_train gpt2
    gpt2_train gpt2-rerun
    same_bits gpt2 gpt2-rerun
    figure "losses and weights of 20 steps are bit-identical"
}

# attention_gpt2 ATTENTION: losses with it against those with flash; and twice the same bits.
attention_gpt2() {
    local attention=$1 worst
    [ -e "$work/runs/gpt2/record.json" ] || gpt2_train gpt2
    gpt2_train "$attention" --set "run.attention=$attention"
    worst=$(difference "$attention" gpt2) || fail "the runs have not the same steps"
    is_below "$worst" "$BF16_BOUND" || fail "losses differ from those with flash by $worst"
    gpt2_train "$attention-rerun" --set "run.attention=$attention"
    same_bits "$attention" "$attention-rerun"
    figure "$attention: losses differ from those with flash by $worst" \
        "(bound $BF16_BOUND); a rerun is bit-identical"
}

# Products with measured algorithms: losses near those of the first ones, and a rerun, which takes
# the algorithms from the cache, has the same bits.
tuned_gpt2() {
    local worst gain origin
    [ -e "$work/runs/gpt2/record.json" ] || gpt2_train gpt2
    gpt2_train tuned --set run.tune_matmul=true
    worst=$(difference tuned gpt2) || fail "the runs have not the same steps"
    is_below "$worst" "$BF16_BOUND" || fail "losses differ from those of the first by $worst"
    gpt2_train tuned-rerun --set run.tune_matmul=true
    origin=$(record tuned-rerun tuned_products.source)
    [ "$origin" = cache ] || fail "the rerun has its algorithms from ${origin:-nowhere}"
    same_bits tuned tuned-rerun
    gain=$(printf '%.1f' "$(record tuned tuned_products.gain_percent)")
    figure "products take $gain % less time; losses differ by $worst (bound $BF16_BOUND);" \
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

# Two of the tests need two devices.
nccl_tests() {
    local skipped=()
    [ "$(device_count)" -ge 2 ] || skipped=(--skip far_ahead_of)
    tests "$cuda_nccl_backend" "${skipped[@]}"
}

nccl_one_rank() {
    nccl_train nccl-none
    nccl_train nccl-one --set collectives.backend=nccl
    local version
    version=$(record nccl-one environment.cuda.nccl)
    [ -n "$version" ] || fail "the run did not open NCCL"
    same_bits nccl-none nccl-one
    figure "NCCL $version, one rank: bit-identical to training without it"
}

# Two processes, on one device if there is no other, which NCCL refuses unless it is told to.
nccl_two_ranks() {
    [ "$(device_count)" -ge 2 ] || export NCCL_MULTI_RANK_GPU_ENABLE=1
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none
    [ -e "$work/runs/nccl-none/record.json" ] || nccl_train nccl-none
    # Other launchers of the user, which remove what they share, have another folder.
    launcher=(env "TMPDIR=$work" mpirun -np 2)
    nccl_train nccl-two --set collectives.backend=nccl
    local worst
    worst=$(difference nccl-two nccl-none) || fail "the runs have not the same steps"
    is_below "$worst" "$F32_BOUND" || fail "two ranks differ from one by $worst"
    nccl_train nccl-sharded --set collectives.backend=nccl --set parallel.sharded=optimizer
    same_bits nccl-two nccl-sharded
    figure "two ranks differ from one by $worst (bound $F32_BOUND); sharded: bit-identical"
}

sanitize_engine() {
    sanitizer "$1" "$cuda_engine" losses_and_every_gradient
}

# sanitize_attention TOOL ATTENTION
sanitize_attention() {
    sanitizer "$1" "$yardstick_models" "cuda_tests::attention::$2_with"
}

# sanitizer TOOL PROGRAM FILTER: tests of a program under compute-sanitizer.
sanitizer() {
    local flags=(--tool "$1" --error-exitcode 9)
    shift
    # Calls that probe, as some in cuBLASLt do, fail by design and are no errors of ours.
    [ "${flags[1]}" != memcheck ] || flags+=(--report-api-errors no)
    tests "$(find_tool compute-sanitizer)" "${flags[@]}" "$@" --test-threads 1
}
