"""Training steps of yardstick and of PyTorch in one run on the same cores.

Both train the same GPT-2 shapes: forward, backward, clipping and AdamW. PyTorch trains on random
tokens (bench/torch_gpt.py), yardstick on its synthetic stream, without checkpoints, with telemetry.
They run in turn for several rounds; the figure is the ratio of median tokens/s to the better of
eager and compiled PyTorch (with --all, the smallest ratio relative to the goal of its row). Peak
memory is the maximum resident set size of the process.
Memory and the share of the matmul rate have goals too: the script prints which goals a row misses,
and then exits with 1.

    bench/cpu_vs_torch.sh [--all] [--row N]
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

TOP = pathlib.Path(__file__).resolve().parent.parent
YARDSTICK = TOP / "target" / "release" / "yardstick"
SMALL = {"layers": 12, "width": 768, "heads": 12, "vocabulary": 50257}
TINY = {"layers": 6, "width": 384, "heads": 6, "vocabulary": 50304}
# Shape, B, T, precision, goal of the ratio.
ROWS = [
    (SMALL, 4, 256, "bf16", 1.3),
    (SMALL, 4, 256, "f32", 1.8),
    (TINY, 12, 256, "bf16", 1.5),
    (TINY, 12, 256, "f32", 2.0),
    (SMALL, 1, 1024, "bf16", 1.3),
    (SMALL, 1, 1024, "f32", 1.8),
]
MEMORY_GOAL = 0.8  # of PyTorch's peak memory
SHARE_GOAL = 0.65  # of the matmul rate, for 124M
WARM_UP, STEPS = 3, 10
ROUNDS = int(os.environ.get("ROUNDS", "2"))


def torch_round(row, compiled):
    """Runs one process of PyTorch; returns the times of its measured steps and its peak memory."""
    shape, sequences, tokens, precision, _ = row
    job = {
        **shape,
        "device": "cpu",
        "embedding_rows": shape["vocabulary"],
        "tokens": tokens,
        "micro_batch": sequences,
        "accumulation": 1,
        "precision": precision,
        "is_compiled": compiled,
        "warm_up": WARM_UP,
        "steps": STEPS,
    }
    command = [sys.executable, str(TOP / "bench" / "torch_gpt.py"), json.dumps(job)]
    done = subprocess.run(command, text=True, capture_output=True)
    if done.returncode != 0:
        sys.exit(f"PyTorch failed:\n{done.stderr[-2000:]}")
    found = json.loads(done.stdout.splitlines()[-1])
    return found["step_ms"], found["peak_bytes"]


def our_round(row):
    """Runs yardstick; returns times, peak memory, FLOPs per token and share of the matmul rate."""
    shape, sequences, tokens, precision, _ = row
    values = {
        **{f"model.{key}": value for key, value in shape.items()},
        "model.feed_forward": 4 * shape["width"],
        "precision.compute": precision,
        "batch.micro_sequences": sequences,
        "batch.global_sequences": sequences,
        "batch.sequence_tokens": tokens,
        "checkpoint.at_end": "false",
    }
    sets = [flag for key, value in values.items() for flag in ("--set", f"{key}={value}")]
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "run"
        arguments = ["train", "--workload", "gpt2-124m", "--steps", str(WARM_UP + STEPS)]
        log = open(pathlib.Path(folder) / "log", "w+", encoding="utf-8")
        command = [str(YARDSTICK), *arguments, *sets, "--out", str(out)]
        process = subprocess.Popen(command, stdout=log, stderr=log)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            log.seek(0)
            sys.exit(f"yardstick failed:\n{log.read()[-2000:]}")
        record = json.loads((out / "record.json").read_text())
        lines = (out / "steps" / "r000000.jsonl").read_text().splitlines()
    times = [json.loads(line)["wall_ns"] / 1e6 for line in lines][WARM_UP:]
    flops = record["steps"]["flops_per_token"]["causal"]
    return times, usage.ru_maxrss * 1024, (flops, record["mfu_measured"]["causal"])


def measure(row):
    """Runs a row and prints its table; returns ratio, goal, and whether all goals are met."""
    shape, sequences, tokens, precision, goal = row
    print(f"\n{shape['layers']} layers, {shape['width']} wide, V {shape['vocabulary']}, "
          f"{sequences} x {tokens}, {precision}")
    found = {"eager": [], "compiled": [], "yardstick": []}
    peaks, shares = dict.fromkeys(found, 0), []
    for _ in range(ROUNDS):
        for name, compiled in (("eager", False), ("compiled", True)):
            times, peak = torch_round(row, compiled)
            found[name] += times
            peaks[name] = max(peaks[name], peak)
        times, peak, (flops, share) = our_round(row)
        shares.append(share)
        found["yardstick"] += times
        peaks["yardstick"] = max(peaks["yardstick"], peak)
    rates = {name: sequences * tokens / statistics.median(ms) * 1e3 for name, ms in found.items()}
    print(f"{'':12}{'tokens/s':>10}{'GFLOP/s':>10}{'peak MiB':>10}")
    for name, rate in rates.items():
        print(f"{name:12}{rate:10.0f}{rate * flops / 1e9:10.0f}{peaks[name] / 2**20:10.0f}")
    ratio = rates["yardstick"] / max(rates["eager"], rates["compiled"])
    share = statistics.median(shares)
    memory = peaks["yardstick"] / min(peaks["eager"], peaks["compiled"])
    print(f"ratio {ratio:.2f} (goal {goal}), peak memory {memory:.2f} of PyTorch's "
          f"(goal {MEMORY_GOAL}), {share:.0%} of the matmul rate measured in the run "
          f"(goal {SHARE_GOAL:.0%} for 124M)")
    missed = [name for name, met in (
        ("ratio", ratio >= goal),
        ("peak memory", memory <= MEMORY_GOAL),
        ("share of the matmul rate", share >= SHARE_GOAL or shape is not SMALL),
    ) if not met]
    if missed:
        print(f"missed: {', '.join(missed)}")
    return ratio, goal, not missed


def main():
    """Measures one row, or all of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--all", action="store_true", help="every row")
    parser.add_argument("--row", type=int, default=1, help="one row, from 1")
    options = parser.parse_args()
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=TOP, text=True,
                            capture_output=True).stdout.strip()
    print(f"{len(os.sched_getaffinity(0))} cores, {STEPS} steps per round after {WARM_UP}, "
          f"{ROUNDS} rounds in turn; checkpoints off, telemetry on; commit {commit}")
    if options.all:
        found = [measure(row) for row in ROWS]
        figure, goal = min(ratio / goal for ratio, goal, _ in found), 1
        met = all(met for *_, met in found)
    else:
        figure, goal, met = measure(ROWS[options.row - 1])
    print(f"cpu_vs_torch: {figure:.2f} (goal {goal})")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
