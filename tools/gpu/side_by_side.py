"""Ranks that share a GPU beside their peers, as clients of MPS and in time slices: the table of bounds.py. Markdown.

hvdrun starts the ranks, and with them its private MPS daemon, as any user's; each group of ranks measures everything on
tensors and models of its own. Steps that are compared alternate; those that need other settings come behind them. It fails
where a bound is missed, or a row could not be measured.

    python -P tools/gpu/side_by_side.py            on a machine with a GPU: 2 and 4 ranks, 4 minutes at most
    python -P tools/gpu/side_by_side.py --tiny     one group of two ranks on the CPU: whether the program itself works
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(ROOT / "tests"), str(ROOT / "notebooks" / "scripts")]

from bounds import CYCLE, DDP, DEFAULT, GPT2, HEAD, NONE, ONE_GROUP, RESNET, STAGED, Row, misses, unmeasured
from ranks import output_of

SIZES = {"64 KiB": 1 << 16, "256 MiB": 1 << 28}
TINY = {"4 KiB": 1 << 12}
SMALL = "allreduces of 4 KiB, one after another"
RING, SHARED, GLOO = "ring", "ring, in shared buckets", "Gloo"
STEPS = (NONE, DEFAULT, ONE_GROUP, DDP, CYCLE, STAGED)
VARIABLES = {CYCLE: {"HOROVOD_CYCLE_TIME": "5"}, STAGED: {"HVD_GPU": "staged"}}
GIVEN_S = {2: 55, 4: 75}  # seconds by number of ranks
TINY_S = 300
MARK = "row:"  # begins a line that is a row


def wanted(ranks: int, mps: bool) -> list[tuple[str, int, bool, str]]:
    """Return the rows of a group of ranks."""
    rings = [(f"allreduce {label}", ranks, mps, way) for label in SIZES for way in (RING, SHARED, GLOO)]
    steps = [(model, ranks, mps, way) for model in (GPT2, RESNET) for way in STEPS]
    return [*rings, (SMALL, ranks, mps, DEFAULT), *steps]


# On the ranks.


class Rank:
    """Context of a rank: its device, the process group of its peer, and the output of its rows."""

    def __init__(self, *, mps: bool, tiny: bool) -> None:
        import torch
        import torch.distributed as dist

        import hvd_kernel.torch as hvd

        torch.set_num_threads(1)
        torch.backends.cudnn.benchmark = True
        self.hvd, self.torch, self.dist, self.mps, self.tiny = hvd, torch, dist, mps, tiny
        hvd.init()
        turn = hvd.local_rank() % max(1, torch.cuda.device_count())
        self.device = torch.device("cpu") if tiny else torch.device("cuda", turn)
        self.copy = 0.0
        if not tiny:
            from measure import copy_speed

            torch.cuda.set_device(self.device)
            self.copy = copy_speed() if hvd.rank() == 0 else 0.0
        meeting = hvd.broadcast_object(_meeting(), root_rank=0)
        dist.init_process_group("gloo", init_method=meeting, rank=hvd.rank(), world_size=hvd.size())

    def row(self, task: str, way: str, seconds: float, limit_s: float = 0.0) -> None:
        if self.hvd.rank() == 0:
            fields = [task, self.hvd.size(), self.mps, way, 1e3 * seconds, 1e3 * limit_s]
            print(MARK + json.dumps(fields), flush=True)

    def seconds(self, call: Callable[[], Any]) -> float:
        """Return the seconds of one call until it is complete on the device, begun by all ranks together."""
        self.wait()
        self.hvd.barrier()
        begin = time.perf_counter()
        call()
        self.wait()
        return time.perf_counter() - begin

    def wait(self) -> None:
        if not self.tiny:
            self.torch.cuda.synchronize()

    def median(self, call: Callable[[], Any], rounds: int = 8) -> float:
        return statistics.median([self.seconds(call) for _ in range(rounds)][2:])

    # What is measured.

    def rings(self) -> None:
        for label, size in (TINY if self.tiny else SIZES).items():
            x = self.torch.zeros(size // 4, device=self.device)
            ways: dict[str, Callable[[], Any]] = {
                RING: lambda x=x: self.hvd.allreduce_(x, name="x", op=self.hvd.Sum),
                GLOO: lambda x=x: self.dist.all_reduce(x),
            }
            if not self.tiny:
                home = self._shared(size, x)
                ways[SHARED] = lambda home=home: self.hvd.allreduce_(home, name="home", op=self.hvd.Sum)
            moved = {RING: 5 * self.hvd.size() + 1, SHARED: 2 * self.hvd.size()}
            for way, call in ways.items():
                bounded = self.copy and size >= 64 << 20 and way in moved
                self.row(
                    f"allreduce {label}", way, self.median(call), moved[way] * size / self.copy if bounded else 0.0
                )
        small, many = self.torch.zeros(1024, device=self.device), 4 if self.tiny else 50

        def back_to_back() -> None:
            for _ in range(many):
                self.hvd.allreduce_(small, name="small", op=self.hvd.Sum)

        self.row(SMALL, DEFAULT, self.median(back_to_back, 5) / many)

    def _shared(self, size: int, like: Any) -> Any:
        from hvd_kernel.core import shared_memory
        from hvd_kernel.torch import memory

        return memory.parts_of(shared_memory.allocate_on_devices(size, like.get_device()), [0], [like])[0]

    def steps(self, model: str, make: Callable[[], tuple[Any, Callable[[Any], Any]]]) -> None:
        calls = {way: self._step(way, *self._seeded(make)) for way in STEPS if way not in VARIABLES}
        rounds = 3 if self.tiny else 12
        taken = [{way: self.seconds(call) for way, call in calls.items()} for _ in range(rounds)][2:]
        for way in calls:
            self.row(model, way, statistics.median(step[way] for step in taken))
        calls.clear()
        for way, variables in VARIABLES.items():
            with self._variables(variables):
                self.row(model, way, self.median(self._step(way, *self._seeded(make)), rounds))

    def _seeded(self, make: Callable[[], tuple[Any, Callable[[Any], Any]]]) -> tuple[Any, Callable[[Any], Any]]:
        self.torch.manual_seed(0)
        return make()

    @contextmanager
    def _variables(self, more: dict[str, str]) -> Iterator[None]:
        """Initialise with other settings, and without them at the end."""
        before = dict(os.environ)
        for now in (more, None):
            self.hvd.shutdown()
            os.environ.clear()
            os.environ.update(before | (now or {}))
            self.hvd.init()
            if now is not None:
                yield

    def _step(self, way: str, net: Any, loss: Callable[[Any], Any]) -> Callable[[], None]:
        sgd = self.torch.optim.SGD(net.parameters(), lr=1e-3)
        optimizer, called = sgd, net
        if way == DDP:
            called = self.torch.nn.parallel.DistributedDataParallel(net)
        elif way != NONE:
            groups = {"groups": 1} if way == ONE_GROUP else {}
            optimizer = self.hvd.DistributedOptimizer(sgd, named_parameters=net.named_parameters(), **groups)

        def one() -> None:
            optimizer.zero_grad()
            loss(called).backward()
            optimizer.step()

        return one

    def gpt2(self) -> tuple[Any, Callable[[Any], Any]]:
        """Return a model of GPT-2 small's size, and the loss of a batch."""
        nn, width, depth, words, length = self.torch.nn, *((32, 1, 64, 8) if self.tiny else (768, 12, 50257, 512))
        layer = nn.TransformerEncoderLayer(
            width, width // 16, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True
        )
        ends = nn.Embedding(words, width), nn.Linear(width, words, bias=False)
        ends[1].weight = ends[0].weight
        net = nn.Sequential(ends[0], nn.TransformerEncoder(layer, depth, enable_nested_tensor=False), ends[1])
        net.to(self.device, self.torch.float32 if self.tiny else self.torch.bfloat16)
        tokens = self.torch.randint(words, (4, length), device=self.device)
        return net, lambda run: nn.functional.cross_entropy(run(tokens).flatten(0, 1).float(), tokens.flatten())

    def resnet(self) -> tuple[Any, Callable[[Any], Any]]:
        """Return ResNet-50, and the loss of a batch."""
        from resnet50_synthetic import resnet

        size, batch = (32, 2) if self.tiny else (224, 32)
        net = resnet("tiny" if self.tiny else "resnet50").to(self.device)
        images = self.torch.randn(batch, 3, size, size, device=self.device)
        labels = self.torch.randint(0, 1000, (batch,), device=self.device)

        def loss(run: Any) -> Any:
            with self.torch.autocast(self.device.type, self.torch.bfloat16):
                out = run(images)
            return self.torch.nn.functional.cross_entropy(out.float(), labels)

        return net, loss


def _meeting() -> str:
    from hvdtest.launch import free_port

    return f"tcp://127.0.0.1:{free_port()}"


def rank_main(*, mps: bool, tiny: bool) -> None:
    """Measure on a rank."""
    if mps and "CUDA_MPS_PIPE_DIRECTORY" not in os.environ:
        sys.exit("there is no MPS daemon: hvdrun has said why")
    rank = Rank(mps=mps, tiny=tiny)
    rank.rings()
    rank.steps(RESNET, rank.resnet)
    rank.steps(GPT2, rank.gpt2)
    rank.dist.destroy_process_group()
    rank.hvd.shutdown()


# The side that starts the ranks.


def group(ranks: int, *, mps: bool, tiny: bool) -> list[Row]:
    """Run the measurements of a group of ranks; other output goes to stderr."""
    late = TINY_S if tiny else GIVEN_S[ranks]
    words = ["--mps" if mps else "--no-mps", *([] if tiny else ["--gpus", "0"]), "--start-timeout", str(late)]
    program = [__file__, "rank", "mps" if mps else "slices", "tiny" if tiny else "whole"]
    rows: list[Row] = []
    for line in output_of(ranks, words, program, {"GLOO_SOCKET_IFNAME": "lo"}, late).splitlines():
        _, mark, text = line.partition(MARK)
        rows += [Row(*json.loads(text))] if mark else []
        print(rows[-1] if mark else line, flush=True, file=sys.stdout if mark else sys.stderr)
    return rows


def main(*, tiny: bool) -> int:
    """Print the table and what is missed; return the exit status."""
    print(f"\nRanks that share a device, medians:\n\n{HEAD}", flush=True)
    groups = [(2, False)] if tiny else [(ranks, mps) for mps in (False, True) for ranks in (2, 4)]
    rows = [row for ranks, mps in groups for row in group(ranks, mps=mps, tiny=tiny)]
    expected = [row for ranks, mps in groups for row in wanted(ranks, mps) if not tiny or row[0] in {GPT2, RESNET}]
    wrong = [*unmeasured(rows, expected), *([] if tiny else misses(rows))]
    print("\n" + "\n".join(f"- MISSED: {miss}" for miss in wrong), flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        rank_main(mps=sys.argv[2] == "mps", tiny=sys.argv[3] == "tiny")
    else:
        sys.exit(main(tiny="--tiny" in sys.argv))
