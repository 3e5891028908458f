"""GPT-2 in PyTorch, as its users train it fast: the peer of bench/cpu_vs_torch.py and
bench/gpu_vs_torch.py.

AdamW is fused, attention is scaled_dot_product_attention. In bf16 autocast runs over f32 weights,
so weights, gradients and moments are f32 as in yardstick. Tokens are random, and there before the
clock starts.

    torch_gpt.py JSON

JSON is an object with device, layers, width, heads, vocabulary, embedding_rows, tokens,
micro_batch, accumulation, precision, is_compiled, mode (of torch.compile; may be absent), warm_up
and steps. Prints a line of JSON: the seconds of all measured steps, the last loss, the version of
cuBLASLt (null where none is loaded), and on the CPU the milliseconds of each step and the peak
memory.
"""

import ctypes
import json
import os
import re
import resource
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    """A GPT-2 block."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        b, t, c = x.shape
        qkv = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, c // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(b, t, c))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt(nn.Module):
    """GPT-2 with a head tied to the token embedding."""

    def __init__(self, layers, width, heads, embedding_rows, tokens):
        super().__init__()
        self.tokens = nn.Embedding(embedding_rows, width)
        self.positions = nn.Embedding(tokens, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, inputs, targets):
        x = self.tokens(inputs) + self.positions.weight
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.tokens.weight)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


def cublaslt_version():
    """The version of the cuBLASLt that this process has loaded, as yardstick writes it."""
    with open("/proc/self/maps") as maps:
        loaded = re.search(r"/\S*libcublasLt\.so\S*", maps.read())
    if not loaded:
        return None
    get_version = ctypes.CDLL(loaded[0]).cublasLtGetVersion
    get_version.restype = ctypes.c_size_t
    number = get_version()
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


def train(job):
    """Trains; returns what is printed."""
    device = torch.device(job["device"])
    is_cpu = device.type == "cpu"
    torch.manual_seed(0)
    if is_cpu:
        torch.set_num_threads(len(os.sched_getaffinity(0)))
    shape = {key: job[key] for key in ("layers", "width", "heads", "embedding_rows", "tokens")}
    with device:
        model = Gpt(**shape)
    run = torch.compile(model, mode=job.get("mode")) if job["is_compiled"] else model
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True
    )
    count = job["accumulation"]
    size = (count, job["micro_batch"], job["tokens"] + 1)
    batches = torch.randint(job["vocabulary"], size, device=device)
    is_bf16 = job["precision"] == "bf16"

    def step():
        for batch in batches:
            with torch.autocast(device.type, torch.bfloat16, enabled=is_bf16):
                loss = run(batch[:, :-1], batch[:, 1:].contiguous())
            (loss / count).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    def seconds():
        if not is_cpu:
            torch.cuda.synchronize()
        return time.perf_counter()

    for _ in range(job["warm_up"]):
        step()
    ends = [seconds()]
    for _ in range(job["steps"]):
        loss = step()
        if is_cpu:  # a GPU is not waited for between steps
            ends.append(seconds())
    found = {"seconds": seconds() - ends[0], "loss": loss.item(),
             "cublaslt": None if is_cpu else cublaslt_version()}
    if is_cpu:
        found["step_ms"] = [1e3 * (end - start) for start, end in zip(ends, ends[1:])]
        found["peak_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return found


if __name__ == "__main__":
    print(json.dumps(train(json.loads(sys.argv[1]))))
