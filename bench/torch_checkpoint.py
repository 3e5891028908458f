"""torch.distributed.checkpoint on the state of GPT-2 124M, f32 weights and both moments of AdamW:
the peer of bench/checkpoint.py.

    torch_checkpoint.py FOLDER

Prints a line of JSON: bytes of the state, seconds of `save` until its files are durable, seconds
for which `async_save` stops its caller (median of three, after one that allocates), and seconds of
`load` with a cold page cache.
"""

import json
import os
import pathlib
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

from torch_gpt import Gpt


def state_of_gpt2():
    """The tensors of a training state, all different."""
    torch.manual_seed(0)
    weights = dict(Gpt(12, 768, 12, 50257, 1024).named_parameters())
    weights = {name: weight.detach() for name, weight in weights.items()}
    moments = {
        kind: {name: torch.rand_like(weight) for name, weight in weights.items()}
        for kind in ("exp_avg", "exp_avg_sq")
    }
    return {"model": weights, **moments}


def drop_pages(folder):
    """Takes the files of a folder out of the page cache."""
    for path in pathlib.Path(folder).rglob("*"):
        if path.is_file():
            with open(path, "rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def timed(action):
    """Seconds that it takes."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def main():
    """Saves, saves in the background, and loads."""
    folder = pathlib.Path(sys.argv[1])
    store = f"file://{folder / 'rendezvous'}"
    dist.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    state = state_of_gpt2()
    tensors = [tensor for group in state.values() for tensor in group.values()]

    def writer(name):
        return dcp.FileSystemWriter(folder / name, sync_files=True)

    save = [timed(lambda: dcp.save(state, storage_writer=writer("saved"))) for _ in range(3)]
    # Without CUDA the stager copies at once, into memory that it keeps.
    stager = DefaultStager(StagingOptions(False, False, False, False))
    stalls = []
    for _ in range(4):
        start = time.perf_counter()
        saving = dcp.async_save(state, storage_writer=writer("async"), async_stager=stager)
        stalls.append(time.perf_counter() - start)
        getattr(saving, "upload_completion", saving).result()
    drop_pages(folder / "saved")
    load = timed(lambda: dcp.load(state, checkpoint_id=folder / "saved"))
    dist.destroy_process_group()
    print(json.dumps({
        "bytes": sum(tensor.nbytes for tensor in tensors),
        "save_seconds": statistics.median(save),
        "async_stall_seconds": statistics.median(stalls[1:]),
        "load_seconds": load,
    }))


if __name__ == "__main__":
    main()
