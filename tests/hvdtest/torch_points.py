"""DDP and FSDP2 training that fails at one exact point, in cells; a seed draws the point.

The victim reaches the point by hooks. It fails there on its own, or it reports the place by a file and holds until it is
interrupted. In the place "inside" the operation of the victim is in flight: the next rank waits for the file before it
takes part, and kills or stops the victim.

Terms.
  point    fault, victim, step and place within the step
  place    one of ``PLACES``
  digest   the parameters after the last step, as hexadecimal text; equal on all ranks and in all runs
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PLACES = ("before forward", "forward", "backward", "optimizer", "collective", "inside")
FAULTS = ("kill", "raise", "interrupt", "stop")
MODELS = ("ddp", "fsdp2")
STEPS = 4


class Injected(RuntimeError):
    """The error of the victim."""


@dataclass(frozen=True)
class Point:
    """One fault of a training; ``number`` tells its files from those of earlier points."""

    number: int
    model: str
    fault: str
    victim: int
    step: int
    place: str

    def __str__(self) -> str:
        return f"point {self.number}: {self.fault} rank {self.victim} of {self.model} at step {self.step}, {self.place}"

    @property
    def message(self) -> str:
        """The text of the victim's error."""
        return f"bug {self.number}"

    def file(self, folder: str) -> Path:
        """Return the file by which the victim reports that it has reached the point."""
        return Path(folder) / f"point-{self.number}"


def drawn(seed: int, ranks: int, points: int) -> list[Point]:
    """Draw points; neither models nor faults differ in number by more than one."""
    chance = random.Random(seed)
    return [_drawn(chance, number, ranks) for number in range(points)]


def _drawn(chance: random.Random, number: int, ranks: int) -> Point:
    fault = FAULTS[number % len(FAULTS)]
    places = [place for place in PLACES if place != "inside" or fault != "raise"]
    model = MODELS[number // len(FAULTS) % len(MODELS)]
    return Point(number, model, fault, chance.randrange(ranks), chance.randrange(STEPS), chance.choice(places))


class Training:
    """A training of a small model on the default group, which reaches the point in step and place."""

    def __init__(self, model: str, point: Point | None, folder: str) -> None:
        import torch
        from torch import distributed as dist

        torch.set_num_threads(1)
        torch.manual_seed(7)
        self._point, self._folder, self._step = point, folder, -1
        self._rank, self._size = dist.get_rank(), dist.get_world_size()
        first, last = torch.nn.Linear(8, 16), torch.nn.Linear(16, 4)
        parameters: list[Any] = [first.weight, last.bias]  # with the last and the first gradient of a pass
        net: Any = torch.nn.Sequential(first, torch.nn.Tanh(), last)
        net[1].register_forward_hook(self._after_activation)
        if model == "ddp":
            for parameter in parameters:
                parameter.register_hook(lambda _gradient: self._reach("backward"))
            net = torch.nn.parallel.DistributedDataParallel(net, bucket_cap_mb=0.0001)
        else:
            from torch.distributed.fsdp import fully_shard

            for module in (first, last, net):
                fully_shard(module)
        self._net = net
        self._optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
        self._optimizer.register_step_pre_hook(lambda *_: self._reach("optimizer"))
        self._is_sharded = model == "fsdp2"

    def _after_activation(self, _module: Any, _inputs: Any, output: Any) -> None:
        self._reach("forward")
        if self._is_sharded and output.requires_grad:
            output.register_hook(lambda _gradient: self._reach("backward"))  # parameters have no gradients of their own

    def run(self, steps: int) -> str:
        """Train, and return the digest."""
        import torch
        from torch import distributed as dist

        for self._step in range(steps):
            data = torch.randn(6, 8, generator=torch.Generator().manual_seed(100 * self._step + self._rank))
            self._reach("before forward")
            self._optimizer.zero_grad()
            loss = self._net(data).square().mean()
            loss.backward()
            self._optimizer.step()
            self._reach("collective")
            self._sum(loss.detach())
        dist.barrier()
        full = [getattr(parameter, "full_tensor", lambda p=parameter: p)() for parameter in self._net.parameters()]
        return torch.cat([parameter.detach().reshape(-1) for parameter in full]).numpy().tobytes().hex()

    def _sum(self, loss: Any) -> None:
        """Sum the loss; at the place "inside" the point is reached while the victim's operation is in flight."""
        from torch import distributed as dist

        point = self._point
        if point is None or (point.place, point.step) != ("inside", self._step):
            dist.all_reduce(loss)
            return
        if self._rank == (point.victim + 1) % self._size:
            victim = int(self._await(point))
            if point.fault == "interrupt":
                _hold()
            os.kill(victim, signal.SIGKILL if point.fault == "kill" else signal.SIGSTOP)
        work = dist.all_reduce(loss, async_op=True)
        if self._rank == point.victim:
            self._report(point)
        work.wait()

    def _reach(self, place: str) -> None:
        point = self._point
        if point is None or (self._rank, self._step, place) != (point.victim, point.step, point.place):
            return
        self._point = None
        self._report(point)
        if point.fault == "raise":
            raise Injected(point.message)
        if point.fault == "interrupt":
            _hold()
        os.kill(os.getpid(), signal.SIGKILL if point.fault == "kill" else signal.SIGSTOP)

    def _report(self, point: Point) -> None:
        written = point.file(self._folder).with_suffix(".part")
        written.write_text(str(os.getpid()))
        written.rename(point.file(self._folder))

    def _await(self, point: Point) -> str:
        while not point.file(self._folder).exists():
            time.sleep(0.001)
        return point.file(self._folder).read_text()


def _hold() -> None:
    while True:
        time.sleep(0.01)


def fail(point: dict[str, Any], folder: str) -> None:
    """Train until the point ends the training. All ranks call this."""
    chosen = Point(**point)
    Training(chosen.model, chosen, folder).run(STEPS)


def works(model: str, *, fresh: bool) -> list[Any]:
    """Return a sum over the default group and the digest of a training; ``fresh``: over a new default group."""
    import torch
    from torch import distributed as dist

    if fresh and dist.is_initialized():
        dist.destroy_process_group()
    if not dist.is_initialized():
        dist.init_process_group()
    tensor = torch.tensor([dist.get_rank() + 1.0])
    dist.all_reduce(tensor)
    return [tensor.item(), type(dist.group.WORLD).__name__, Training(model, None, "").run(2)]


def script() -> None:
    """Train until the point ends the training, as the program of a job: ``PROGRAM POINT FOLDER``, the point as JSON."""
    from torch import distributed as dist

    dist.init_process_group()
    fail(json.loads(sys.argv[1]), sys.argv[2])
