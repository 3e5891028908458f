"""The kernels that decide the time of a step, from what NVIDIA's profiler wrote of each launch.

    python3 bench/ncu_kernels.py CSV

CSV is the log of `ncu --csv --page raw --print-units base` with the metrics below. Prints a JSON
object: launches, milliseconds, and bytes read from and written to memory, of all kernels and of
each of OURS. The product of the head is the longest launch of a library's product, whose name says
which kind of kernel the library chose. Exits with 1 where one of them has no launch.
"""

import csv
import json
import re
import sys

TIME, READ, WRITTEN = "gpu__time_duration.sum", "dram__bytes_read.sum", "dram__bytes_write.sum"
# Kernels of models/src/ops, by patterns of their names.
OURS = {
    "attention_forward": r"(flash|wgmma)_forward",
    "attention_backward_keys": r"(flash|wgmma)_backward_keys",
    "attention_backward_queries": r"(flash|wgmma)_backward_queries",
    "norm_backward": r"(layer|rms)_norm_backward",
    "column_sums": r"column_(partials|sums)",
}
# cuBLASLt's kernels of products.
LIBRARY = r"nvjet|gemm|cutlass|xmma"


def launches(path):
    """A row for each launch; the profiler's other lines and the line of units are left out."""
    with open(path, newline="") as file:
        table = [line for line in file if line.startswith('"')]
    return [row for row in csv.DictReader(table) if row["ID"]]


def number(text):
    """The profiler separates thousands."""
    return float(text.replace(",", ""))


def total(rows):
    """The sums of some launches, with the names of their kernels."""
    return {
        "kernels": sorted({row["Kernel Name"] for row in rows}),
        "launches": len(rows),
        "milliseconds": sum(number(row[TIME]) for row in rows) / 1e6,
        "read_bytes": sum(number(row[READ]) for row in rows),
        "written_bytes": sum(number(row[WRITTEN]) for row in rows),
    }


def summary(rows):
    """All launches, ours by their names, and the product of the head."""
    found = {"all": {**total(rows), "kernels": []}}
    for name, pattern in OURS.items():
        found[name] = total([row for row in rows if re.match(pattern, row["Kernel Name"])])
    products = [row for row in rows if re.search(LIBRARY, row["Kernel Name"])]
    longest = max(products, key=lambda row: number(row[TIME]), default=None)
    found["head_product"] = total([longest] if longest else [])
    return found


def main():
    """Prints the summary of a log."""
    found = summary(launches(sys.argv[1]))
    print(json.dumps(found, indent=2))
    missing = [name for name, sums in found.items() if not sums["launches"]]
    if missing:
        sys.exit(f"{sys.argv[1]} has no launch of {', '.join(missing)}")


if __name__ == "__main__":
    main()
