"""Checkpoints of yardstick, of torch.distributed.checkpoint, and `dd`, on one disk in one run.

The state is that of GPT-2 124M: f32 weights and both moments, 1.5 GB, on one rank. In turn for
several rounds:

- durable write: bytes over the time of a save without background, from its trigger to the known
  commit, beside `dd oflag=direct conv=fdatasync`;
- restore: bytes over the time of finding, reading and verifying, with a cold page cache, beside
  `dd iflag=direct`;
- stall: time for which a save in the background stops training, beside the time of a call of
  `async_save` (bench/torch_checkpoint.py);
- steps beside a save: training on one core while saves follow each other, beside training
  without. Needs a second core, which is free.

Figures are ratios of medians. The script prints which goals are missed, and then exits with 1.

    bench/checkpoint.sh [FOLDER]

FOLDER is on the disk to measure, with 6 GB free; a temporary folder by default.
"""

import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

from torch_checkpoint import drop_pages

TOP = pathlib.Path(__file__).resolve().parent.parent
YARDSTICK = TOP / "target" / "release" / "yardstick"
ROUNDS = int(os.environ.get("ROUNDS", "3"))
WORKLOAD = os.environ.get("WORKLOAD", "gpt2-124m")
# Small steps: what is measured does not depend on their length.
SHORT_STEPS = ["batch.global_sequences=1", "batch.micro_sequences=1", "batch.sequence_tokens=128"]
GOALS = {
    "write": ("durable write, of dd's rate", 0.85, True),
    "restore": ("restore, of dd's rate", 0.85, True),
    "stall": ("stall of a save, of async_save's", 0.25, False),
    "steps": ("step beside a save, of one without", 1.05, False),
}


def run(command):
    """Runs a command and returns its output; ends the script if it fails."""
    done = subprocess.run([str(part) for part in command], text=True, capture_output=True)
    if done.returncode != 0:
        sys.exit(f"{command[0]} failed:\n{done.stderr[-2000:]}")
    return done


def train(out, steps, *sets):
    """Trains on one core until a step, and returns the record."""
    flags = [flag for value in (*SHORT_STEPS, "checkpoint.at_end=false", *sets)
             for flag in ("--set", value)]
    run([YARDSTICK, "train", "--workload", WORKLOAD, "--threads", "1", "--steps", steps,
         "--out", out, *flags])
    return json.loads((out / "record.json").read_text())


def seconds_of_dd(*operands):
    """Time of dd, by its own report."""
    report = run(["dd", "bs=16M", *operands]).stderr.splitlines()[-1]
    return float(report.split(", ")[-2].split()[0])


def write_and_restore(folder, found):
    """A save without background and a restore, each beside dd with as many bytes."""
    out = folder / "durable"
    saved = train(out, 3, "checkpoint.background=false", "checkpoint.every=1steps")["checkpoints"]
    found["write"].append(saved["bytes"] / saved["save_ms"]["median"] * 1e3)
    drop_pages(out)
    recovery = train(out, 4)["attempts"][-1]["recovery"]
    read = sum(source["bytes"] for source in recovery["sources"])
    found["restore"].append(read / recovery["seconds"])
    shutil.rmtree(out)
    file, count = folder / "dd", f"count={max(saved['bytes'] >> 24, 1)}"
    bytes_dd = int(count.split("=")[1]) << 24
    seconds = seconds_of_dd("if=/dev/zero", f"of={file}", count, "oflag=direct", "conv=fdatasync")
    found["dd write"].append(bytes_dd / seconds)
    seconds = seconds_of_dd(f"if={file}", "of=/dev/null", "iflag=direct")
    found["dd read"].append(bytes_dd / seconds)
    file.unlink()


def background(folder, found):
    """Stalls of single saves, and steps beside saves that follow each other."""
    out = folder / "background"
    saved = train(out, 18, "checkpoint.every=6steps")["checkpoints"]
    found["stall"].append(saved["stall_ms"]["median"] / 1e3)
    shutil.rmtree(out)
    for name, every in (("with saves", "1steps"), ("without saves", "never")):
        train(out, 14, f"checkpoint.every={every}")
        lines = (out / "steps" / "r000000.jsonl").read_text().splitlines()
        found[name] += [json.loads(line)["wall_ns"] / 1e9 for line in lines][3:]
        shutil.rmtree(out)


def peer(folder, found):
    """The same by torch.distributed.checkpoint."""
    out = folder / "torch"
    out.mkdir()
    script = TOP / "bench" / "torch_checkpoint.py"
    done = run([sys.executable, "-W", "ignore", script, out])
    shutil.rmtree(out)
    peers = json.loads(done.stdout.splitlines()[-1])
    found["torch write"].append(peers["bytes"] / peers["save_seconds"])
    found["torch restore"].append(peers["bytes"] / peers["load_seconds"])
    found["torch stall"].append(peers["async_stall_seconds"])


def measure(folder):
    """All rounds; the medians by name."""
    names = ("write", "restore", "dd write", "dd read", "torch write", "torch restore", "stall",
             "torch stall", "with saves", "without saves")
    found = {name: [] for name in names}
    for _ in range(ROUNDS):
        write_and_restore(folder, found)
        peer(folder, found)
        background(folder, found)
    return {name: statistics.median(values) for name, values in found.items()}


def main():
    """Prints the table and the ratios."""
    commit = run(["git", "-C", TOP, "rev-parse", "--short", "HEAD"]).stdout.strip()
    print(f"{WORKLOAD}, {len(os.sched_getaffinity(0))} cores, {ROUNDS} rounds; commit {commit}")
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as folder:
        found = measure(pathlib.Path(folder))
    print(f"{'':22}{'yardstick':>12}{'torch':>12}{'dd':>12}")
    rows = (("durable write, MB/s", "write", "torch write", "dd write", 1e-6),
            ("restore, MB/s", "restore", "torch restore", "dd read", 1e-6),
            ("stall of a save, ms", "stall", "torch stall", None, 1e3))
    for name, *columns, scale in rows:
        cells = [f"{found[column] * scale:12.1f}" if column else "" for column in columns]
        print(f"{name:22}{''.join(cells)}")
    print(f"step beside a save {found['with saves'] * 1e3:.0f} ms, "
          f"without {found['without saves'] * 1e3:.0f} ms")
    ratios = {
        "write": found["write"] / found["dd write"],
        "restore": found["restore"] / found["dd read"],
        "stall": found["stall"] / found["torch stall"],
        "steps": found["with saves"] / found["without saves"],
    }
    are_met = True
    for key, (name, goal, is_minimum) in GOALS.items():
        is_met = ratios[key] >= goal if is_minimum else ratios[key] <= goal
        are_met &= is_met
        relation = "at least" if is_minimum else "at most"
        missed = "" if is_met else ", missed"
        print(f"checkpoint: {name}: {ratios[key]:.3f} (goal {relation} {goal}{missed})")
    return 0 if are_met else 1


if __name__ == "__main__":
    sys.exit(main())
