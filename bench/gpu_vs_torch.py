"""Training steps of yardstick and of compiled PyTorch in one run on the same GPU.

Both train the same shapes in bf16 with f32 master weights, on the same number of tokens a step:
GPT-2 124M at T = 1024, and GPT-3 1.3B at T = 2048. First each finds its best micro-batch that fits,
in short runs; then they run in turn for several rounds. yardstick trains on its synthetic stream,
without checkpoints, with telemetry; what PyTorch does is in bench/torch_gpt.py, compiled in each of
two modes, or in that of --torch-mode. Each second round is in the opposite order. The figure is the
smallest ratio of median tokens/s to the faster mode. On an H200 there are goals for our own rates
as well. The script prints which goals are missed, and then exits with 1; it prints which cuBLASLt
each used.

    python3 bench/gpu_vs_torch.py [--row 124M|1.3B] [--rounds N] [--steps N]
                                  [--yardstick PROGRAM] [--attention flash|wgmma]
                                  [--torch-micro N] [--our-micro N] [--torch-mode MODE]
                                  [--json FILE]

python3 is one that has PyTorch for this GPU; nothing is installed. The program is that of
`cargo build --release`, or the one beside this file in a folder that `scripts/gpu-check.sh --pack`
made. Every run is printed when it is done, so that little is lost where time is short: `--row 1.3B
--rounds 1 --torch-micro 8 --our-micro 16` searches nothing and is one run of each, with the
micro-batches that an earlier search printed. --json writes the figures of the last row that was
measured. `--tiny --device cpu` runs all of this with a tiny
model without a GPU, to check the script: no figure of that means anything.
"""

import argparse
import dataclasses
import functools
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
RATIO_GOAL = 1.1
OURS = "yardstick"
TORCH_MODES = ("default", "max-autotune-no-cudagraphs")
H200 = "NVIDIA H200"
H200_RATE_GOAL = 550_000  # tokens/s of 124M
H200_MFU_GOAL = 0.55  # mfu_causal of 1.3B
# Steps that are not measured, and those that are; in the search for a micro-batch.
WARM_UP, STEPS = 5, 20
SEARCH_WARM_UP, SEARCH_STEPS = 3, 5
# yardstick's exit code where the machine is not fit, and what it says where that is for memory.
NOT_FIT = 3
NO_MEMORY = ("memory does not suffice", "has no room for",
             "bytes of free memory on the device", "CUDA_ERROR_OUT_OF_MEMORY")


@dataclasses.dataclass
class Row:
    """A model and its batch."""

    name: str
    workload: str  # the preset that has the rest of the configuration
    layers: int
    width: int
    heads: int
    vocabulary: int
    tokens: int  # T
    sequences: int  # of a step
    micro_batches: tuple  # largest first; each divides the sequences

    def settings(self, micro):
        """The configuration of yardstick."""
        return {
            "model.layers": self.layers,
            "model.width": self.width,
            "model.heads": self.heads,
            "model.feed_forward": 4 * self.width,
            "model.vocabulary": self.vocabulary,
            "model.context": self.tokens,
            "precision.compute": "bf16",
            "batch.micro_sequences": micro,
            "batch.global_sequences": self.sequences,
            "batch.sequence_tokens": self.tokens,
            "checkpoint.at_end": "false",
        }

    def job(self, micro):
        """The same for PyTorch; rows of a multiple of 64 are faster there."""
        names = ("layers", "width", "heads", "vocabulary", "tokens")
        return {
            **{name: getattr(self, name) for name in names},
            "embedding_rows": -(-self.vocabulary // 64) * 64,
            "micro_batch": micro,
            "accumulation": self.sequences // micro,
            "precision": "bf16",
            "is_compiled": True,
        }


ROWS = [
    Row("124M", "gpt2-124m", 12, 768, 12, 50257, 1024, 128, (128, 64, 32, 16, 8)),
    Row("1.3B", "gpt3-1.3b", 24, 2048, 16, 50257, 2048, 64, (64, 32, 16, 8, 4, 2, 1)),
]
TINY = [
    Row("124M", "gpt2-124m", 2, 64, 2, 500, 32, 4, (4, 2)),
    Row("1.3B", "gpt3-1.3b", 2, 64, 2, 500, 32, 4, (4, 2)),
]


@dataclasses.dataclass
class Measured:
    """A run of either program; flops, mfu and gpu are known of ours only."""

    rate: float  # tokens/s
    cublaslt: str = None  # version
    flops: float = None  # per token, causal
    mfu: float = None  # mfu_causal
    gpu: str = None


def torch_run(row, micro, steps, options, mode):
    """Trains with PyTorch in a process of its own; None where it does not fit."""
    warm_up, measured = steps
    job = {**row.job(micro), "mode": mode, "device": options.device,
           "warm_up": warm_up, "steps": measured}
    command = [sys.executable, str(HERE / "torch_gpt.py"), json.dumps(job)]
    done = subprocess.run(command, text=True, capture_output=True)
    if done.returncode != 0 and "out of memory" in done.stderr:
        return None
    if done.returncode != 0:
        sys.exit(f"PyTorch failed:\n{done.stderr[-2000:]}")
    found = json.loads(done.stdout.splitlines()[-1])
    rate = measured * row.sequences * row.tokens / found["seconds"]
    return Measured(rate, found["cublaslt"])


def run_ours(command):
    """Runs yardstick, with the libraries that a packed folder has beside it."""
    libraries = pathlib.Path(command[0]).absolute().parent / "lib"
    environment = dict(os.environ)
    if libraries.is_dir():
        paths = [str(libraries), environment.get("LD_LIBRARY_PATH")]
        environment["LD_LIBRARY_PATH"] = ":".join(path for path in paths if path)
    try:
        return subprocess.run(command, text=True, capture_output=True, env=environment)
    except OSError as error:
        sys.exit(f"yardstick does not start: {error}")


def our_version(program):
    """What the binary says that it is."""
    done = run_ours([program, "--version"])
    if done.returncode != 0:
        sys.exit(f"yardstick does not start: {program} --version ended with {done.returncode}:\n"
                 f"{done.stderr[-2000:]}")
    return done.stdout.strip()


def our_run(row, micro, steps, options):
    """Trains with yardstick; None where it does not fit."""
    warm_up, measured = steps
    settings = {**row.settings(micro), "run.attention": options.attention}
    sets = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "run"
        command = [options.yardstick, "train", "--workload", row.workload, *sets, "--device",
                   options.device, "--steps", str(warm_up + measured), "--out", str(out)]
        done = run_ours(command)
        if done.returncode == NOT_FIT and any(text in done.stderr for text in NO_MEMORY):
            return None
        if done.returncode != 0:
            sys.exit(f"yardstick failed:\n{done.stderr[-2000:]}")
        record = json.loads((out / "record.json").read_text())
        lines = (out / "steps" / "r000000.jsonl").read_text().splitlines()
    seconds = sum(json.loads(line)["wall_ns"] for line in lines[warm_up:]) / 1e9
    rate = measured * row.sequences * row.tokens / seconds
    return ours(record, rate)


def ours(record, rate):
    """With what the record says; its MFU is of all steps, so it is scaled to the measured ones."""
    mfu = record["mfu_causal"]
    if mfu is not None:
        mfu *= rate / record["tokens_per_second"]["step"]["total"]
    gpu = (record["ranks"][0]["device"] or {}).get("name")
    cublaslt = (record["environment"]["cuda"] or {}).get("cublaslt")
    return Measured(rate, cublaslt, record["steps"]["flops_per_token"]["causal"], mfu, gpu)


def best_micro_batch(name, run, row, options):
    """The micro-batch with the highest rate: from the largest that fits, while it gets faster."""
    best, best_rate = None, 0
    for micro in row.micro_batches:
        found = run(row, micro, (SEARCH_WARM_UP, SEARCH_STEPS), options)
        rate = found.rate if found else 0
        outcome = f"{rate:.0f} tokens/s" if found else "does not fit"
        print(f"{name:36}micro-batch {micro}: {outcome}")
        if best and rate <= best_rate:
            break
        if found:
            best, best_rate = micro, rate
    if best is None:
        sys.exit(f"{name}: no micro-batch of {row.micro_batches} fits")
    print(f"{name:36}best micro-batch: {best}")
    return best


def torch_name(mode):
    """PyTorch compiled in a mode."""
    return f"PyTorch {mode}"


def micro_batches(row, options):
    """Those of all programs, given or searched for; PyTorch's is that of its first mode."""
    search = functools.partial(torch_run, mode=options.torch_modes[0])
    torch = options.torch_micro or best_micro_batch("PyTorch", search, row, options)
    ours_found = options.our_micro or best_micro_batch(OURS, our_run, row, options)
    return {**{torch_name(mode): torch for mode in options.torch_modes}, OURS: ours_found}


def measure(row, options):
    """Measures a row and prints its table; returns the ratio and the goals that were missed."""
    print(f"\n{row.name}: {row.layers} layers, {row.width} wide, V {row.vocabulary}, "
          f"T {row.tokens}, {row.sequences} sequences a step, bf16")
    micro = micro_batches(row, options)
    programs = {torch_name(mode): functools.partial(torch_run, mode=mode)
                for mode in options.torch_modes}
    programs[OURS] = our_run
    found = {name: [] for name in programs}
    for round_number in range(1, options.rounds + 1):
        in_turn = list(programs.items())[::1 if round_number % 2 else -1]
        for name, run in in_turn:
            measured = run(row, micro[name], (WARM_UP, options.steps), options)
            if measured is None:
                sys.exit(f"{name}: a micro-batch of {micro[name]} does not fit")
            found[name].append(measured)
            print(f"{name:36}round {round_number}: {measured.rate:.0f} tokens/s")
    return judge(row, micro, found, options)


def judge(row, micro, found, options):
    """Prints medians and ratios; returns the smallest and the goals that were missed."""
    rates = {name: statistics.median(run.rate for run in runs) for name, runs in found.items()}
    one = found[OURS][0]
    print(f"{'':36}{'tokens/s':>10}{'TFLOP/s':>10}{'mfu_causal':>12}{'micro-batch':>13}  rounds")
    for name, rate in rates.items():
        # The peak is the same for all: that which our record counts with.
        mfu = f"{one.mfu * rate / one.rate:.3f}" if one.mfu else "unknown"
        rounds = " ".join(f"{run.rate:.0f}" for run in found[name])
        print(f"{name:36}{rate:10.0f}{rate * one.flops / 1e12:10.1f}{mfu:>12}{micro[name]:13}  "
              f"{rounds}")
    ratios = {name: rates[OURS] / rate for name, rate in rates.items() if name != OURS}
    fastest = min(ratios, key=ratios.get)
    ratio = ratios[fastest]
    for name, each in ratios.items():
        print(f"{OURS} / {name}: {each:.3f}")
    print(f"ratio {ratio:.2f} to {fastest} (goal {RATIO_GOAL})")
    versions = {name: runs[0].cublaslt for name, runs in found.items()}
    print(cublaslt_line(versions))
    if options.json:
        write_json(options.json, row, ratios, versions, found)
    missed = [] if ratio >= RATIO_GOAL else [f"{row.name}: ratio"]
    return ratio, missed + h200_goal(row, rates[OURS], one)


def cublaslt_line(versions):
    """Which cuBLASLt each program used: products by other kernels are another comparison."""
    if len(set(versions.values())) == 1:
        version = versions[OURS]
        return f"cuBLASLt {version} for all" if version else "cuBLASLt not used"
    return "cuBLASLt differs: " + ", ".join(f"{it} for {name}" for name, it in versions.items())


def write_json(path, row, ratios, versions, found):
    """Writes the figures of a row."""
    programs = {
        name: {"tokens_per_second": [run.rate for run in runs], "cublaslt": versions[name],
               "ratio": ratios.get(name)}
        for name, runs in found.items()
    }
    text = json.dumps({"row": row.name, "ratio": min(ratios.values()), "programs": programs})
    pathlib.Path(path).write_text(text + "\n")


def h200_goal(row, rate, one):
    """Prints our rate against its goal, which is for an H200; returns it if it was missed."""
    if row.name == "124M":
        figure, goal, what = rate, H200_RATE_GOAL, "tokens/s"
    else:
        figure, goal, what = one.mfu and one.mfu * rate / one.rate, H200_MFU_GOAL, "mfu_causal"
    shown = "unknown" if figure is None else f"{figure:.3f}" if figure < 1 else f"{figure:.0f}"
    print(f"{row.name} {what} {shown} (goal on an {H200} {goal}); this is {one.gpu or 'no GPU'}")
    is_missed = one.gpu == H200 and (figure is None or figure <= goal)
    return [f"{row.name}: {what}"] if is_missed else []


def program():
    """The binary beside this file, or that of `cargo build --release`."""
    packed = HERE / "yardstick"
    return str(packed if packed.exists() else HERE.parent / "target" / "release" / "yardstick")


def arguments():
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--row", choices=[row.name for row in ROWS], help="one row alone")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=STEPS, help="of a round, measured")
    parser.add_argument("--yardstick", default=program(), help="the binary")
    parser.add_argument("--torch-micro", type=int, help="PyTorch's micro-batch")
    parser.add_argument("--our-micro", type=int, help="yardstick's micro-batch")
    parser.add_argument("--torch-mode", choices=TORCH_MODES, action="append", dest="torch_modes",
                        help="of torch.compile; both, if none is given")
    parser.add_argument("--json", help="file for the figures")
    parser.add_argument("--attention", choices=["flash", "wgmma"], default="flash",
                        help="what computes ours")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a tiny model, to check this script")
    options = parser.parse_args()
    options.torch_modes = options.torch_modes or TORCH_MODES
    return options


def main():
    """Measures one row, or both."""
    options = arguments()
    sys.stdout.reconfigure(line_buffering=True)  # what is known is told at once, also to a file
    version = our_version(options.yardstick)
    print(f"{version}; {options.steps} steps a round after {WARM_UP}, {options.rounds} rounds in "
          "turn; checkpoints off, telemetry on")
    if options.tiny:
        print("A tiny model, to check this script: no figure below means anything.")
    rows = [row for row in (TINY if options.tiny else ROWS) if options.row in (None, row.name)]
    found = [measure(row, options) for row in rows]
    missed = [goal for _, goals in found for goal in goals]
    if missed:
        print(f"missed: {', '.join(missed)}")
    print(f"gpu_vs_torch: {min(ratio for ratio, _ in found):.2f} (goal {RATIO_GOAL})")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
