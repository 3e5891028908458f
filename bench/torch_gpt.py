"""GPT-2 in PyTorch, as its users train it fast: the peer of bench/gpu_vs_torch.py.

bf16 by autocast over f32 weights, so weights, gradients and moments are f32 as in yardstick;
torch.compile; attention by scaled_dot_product_attention; fused AdamW. The vocabulary is padded to a
multiple of 64, which is faster here. Tokens are random and on the device before the clock starts.

    torch_gpt.py JSON

JSON is an object with device, layers, width, heads, vocabulary, tokens, micro_batch, accumulation,
warm_up and steps. Prints a line of JSON: the seconds of all measured steps and the last loss.
"""

import json
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

    def __init__(self, layers, width, heads, vocabulary, tokens):
        super().__init__()
        rows = -(-vocabulary // 64) * 64
        self.tokens = nn.Embedding(rows, width)
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


def train(job):
    """Trains; returns the seconds of all measured steps, and the last loss."""
    device = torch.device(job["device"])
    torch.manual_seed(0)
    shape = {key: job[key] for key in ("layers", "width", "heads", "vocabulary", "tokens")}
    with device:
        model = Gpt(**shape)
    run = torch.compile(model)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True
    )
    count = job["accumulation"]
    size = (count, job["micro_batch"], job["tokens"] + 1)
    batches = torch.randint(job["vocabulary"], size, device=device)

    def step():
        for batch in batches:
            with torch.autocast(device.type, torch.bfloat16):
                loss = run(batch[:, :-1], batch[:, 1:].contiguous())
            (loss / count).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    def seconds():
        if device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    for _ in range(job["warm_up"]):
        step()
    start = seconds()
    for _ in range(job["steps"]):
        loss = step()
    return {"seconds": seconds() - start, "loss": loss.item()}


if __name__ == "__main__":
    print(json.dumps(train(json.loads(sys.argv[1]))))
