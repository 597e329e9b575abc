"""A transformer that learns to write Python, character by character, from the sources of the standard library.

    hvdrun -np 4 python chars.py --steps 300 --sample 400
    %%hvdrun -np 4                            in a notebook; the model stays there as ``model``:
    %run scripts/chars.py --steps 300

Every rank reads other places of the same text; together they take one step on size times as many characters.
"""

import argparse
import math
import sysconfig
from pathlib import Path

import hvd_kernel.torch as hvd
import torch
from torch import nn
from torch.nn import functional as F

CHARACTERS = 128  # ASCII; what is beyond it is left out


def arguments(given=None):
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--batch-size", type=int, default=16, help="sequences per rank and step")
    parser.add_argument("--length", type=int, default=64, help="characters of a sequence")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--passes", type=int, default=1, help="backward passes before each step")
    parser.add_argument("--sample", type=int, default=0, help="characters to write at the end")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1, help="of each rank; another number sums in another order")
    return parser.parse_args(given)


def text():
    """The standard library's top-level modules, as one long row of characters."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    everything = "".join(file.read_text(encoding="utf-8", errors="ignore") for file in files)
    return torch.tensor(bytearray(everything.encode("ascii", "ignore")), dtype=torch.uint8)


class Layer(nn.Module):
    """Look back (attention), then think (two linear layers); both add to what is there."""

    def __init__(self, width, heads=4):
        super().__init__()
        self.heads = heads
        self.before_look, self.before_think = nn.LayerNorm(width), nn.LayerNorm(width)
        self.look, self.looked = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.think = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.look(self.before_look(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)  # nobody sees the future
        x = x + self.looked(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.think(self.before_think(x))


class Writer(nn.Module):
    """For each character of a sequence: how likely each character is to come next."""

    def __init__(self, length, width, layers):
        super().__init__()
        self.length = length
        self.character, self.place = nn.Embedding(CHARACTERS, width), nn.Embedding(length, width)
        self.layers = nn.Sequential(*(Layer(width) for _ in range(layers)))
        self.out = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, CHARACTERS))

    def forward(self, characters):
        places = torch.arange(characters.shape[1], device=characters.device)
        return self.out(self.layers(self.character(characters) + self.place(places)))

    @torch.no_grad()
    def write(self, count, start="def "):
        written = torch.tensor([list(start.encode())])
        for _ in range(count):
            likely = self(written[:, -self.length :])[:, -1].softmax(-1)
            written = torch.cat([written, torch.multinomial(likely, 1)], dim=1)
        return bytes(written[0].tolist()).decode("ascii")


def main(given=None):
    args = arguments(given)
    hvd.init()
    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)
    model = Writer(args.length, args.width, args.layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = hvd.DistributedOptimizer(
        optimizer, named_parameters=model.named_parameters(), backward_passes_per_step=args.passes
    )
    characters = text()
    places = torch.Generator().manual_seed(args.seed * 1000 + hvd.rank())  # this rank's own

    def batch():
        starts = torch.randint(len(characters) - args.length - 1, (args.batch_size, 1), generator=places)
        return characters[starts + torch.arange(args.length + 1)].long()

    for step in range(1, args.steps + 1):
        optimizer.zero_grad()
        for _ in range(args.passes):
            sequence = batch()
            output = model(sequence[:, :-1])
            loss = F.cross_entropy(output.flatten(0, 1), sequence[:, 1:].flatten()) / args.passes
            loss.backward()
        optimizer.step()
        if step % max(1, args.steps // 10) == 0:
            final = hvd.allreduce(loss.detach().double() * args.passes, name="loss").item()
            if hvd.rank() == 0:
                print(f"step {step}: {final / math.log(2):.3f} bits per character", flush=True)
    if hvd.rank() == 0:
        print(f"final loss {final.hex()}")
        if args.sample:
            print(model.write(args.sample))
    return final, model


if __name__ == "__main__":
    _, model = main()
