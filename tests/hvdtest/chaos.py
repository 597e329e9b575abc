"""The chaos driver: a training in a real kernel, faults by sentence, and a user's reaction to each.

Terms.
  lap       one cell that trains from where the ranks stand to a step, with the faults of its plan
  repair    what follows a failed lap: %hvd respawn if ranks are dead, and one cell that makes all ranks equal again
  digest    sha256 of all parameters and of the optimizer's state on one rank

After every step each rank keeps a copy of model and optimizer; after a fault all ranks go on from the copy of the rank
that is furthest. A step's data depend on its number alone, so the end does not depend on the faults: bit for bit.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from hvdtest.kernel import Kernel, Outcome
from hvdtest.sentences import ENDS_A_RANK, FAILS_THE_CELL, Fault

BUILD = """%%hvdrun
import copy, hashlib, torch
from hvdtest import inject

def build():
    torch.manual_seed(1)
    net = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 4))
    plain = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    return net, hvd.DistributedOptimizer(plain, named_parameters=net.named_parameters())

def train(until, plan, kernel):
    global done, saved
    while done < until:
        step = done + 1
        inject.at(step, rank, plan, kernel)
        data = torch.randn(8, 16, generator=torch.Generator().manual_seed(1000 * step + rank))
        optimizer.zero_grad()
        model(data).square().mean().backward()
        optimizer.step()
        saved = step, copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
        done = step

def digest():
    state = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        state.update(name.encode() + value.numpy().tobytes())
    for entry in optimizer.state_dict()["state"].values():
        state.update(entry["momentum_buffer"].numpy().tobytes())
    return state.hexdigest()
"""

EQUAL = """%%hvdrun
reached = saved[0] if "saved" in globals() else -1
steps = hvd.allgather(torch.tensor([reached]), name="chaos.steps")
furthest = int(steps.argmax())
if "model" not in globals():
    model, optimizer = build()
if reached >= 0:
    model.load_state_dict(saved[1])
    optimizer.load_state_dict(saved[2])
done = max(int(steps.max()), 0)
if int(steps.max()) >= 0:
    state = hvd.broadcast_object((model.state_dict(), optimizer.state_dict()), furthest, name="chaos.state")
    model.load_state_dict(state[0])
    optimizer.load_state_dict(state[1])
saved = done, copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
"""


@dataclass(frozen=True)
class Lap:
    """The result of one lap."""

    faults: tuple[Fault, ...]
    outcome: Outcome
    usable_after_s: float  # from the failed cell's end until all ranks were equal again; 0 where the cell did not fail

    @property
    def ename(self) -> str:
        """The class of the error with which the cell ended, "" for none."""
        return str(self.outcome.reply.get("ename", ""))


class Chaos:
    """A training of some ranks in a kernel."""

    def __init__(self, kernel: Kernel, ranks: int) -> None:
        self.kernel = kernel
        self.ranks = ranks
        kernel.run(f"%%hvdrun -np {ranks}", timeout=120)
        self._equal()

    def lap(self, until: int, faults: Sequence[Fault] = ()) -> Lap:
        """Train up to a step with planned faults; after a failure repair, and continue without it."""
        for fault in faults:
            assert fault.rank < self.ranks, fault
        plan = [fault.as_dict() for fault in faults]
        cell = f"%%hvdrun\ntrain({until}, {plan!r}, {self.kernel.pid})"
        outcome = self.kernel.run(cell, timeout=120, allow_error=True)
        if outcome.reply["status"] == "ok":
            return Lap(tuple(faults), outcome, 0.0)
        began = time.monotonic()
        self.repair()
        return Lap(tuple(faults), outcome, time.monotonic() - began)

    def repair(self) -> None:
        """Repair as a user would: respawn dead ranks and make all ranks equal."""
        if self.dead():
            self.kernel.run("%hvd respawn", timeout=120)
        self._equal()

    def dead(self) -> list[int]:
        """Return the ranks whose process has exited."""
        rows = [line.split() for line in self.kernel.run("%hvd status").text().splitlines()[1:]]
        return [int(row[0]) for row in rows if row[1] == "dead"]

    def step(self) -> int:
        """The step that all ranks have done."""
        shown = self.kernel.run("%%hvdrun\ndone").shown
        label, _, value = shown[0].partition("] ")
        assert label == f"[0-{self.ranks - 1}", shown
        return int(value)

    def digest(self) -> str:
        """The digest, the same on every rank."""
        shown = self.kernel.run("%%hvdrun\ndigest()").shown
        label, _, value = shown[0].partition("] ")
        assert (len(shown), label) == (1, f"[0-{self.ranks - 1}"), f"ranks differ: {shown}"
        return value

    def _equal(self) -> None:
        self.kernel.run(BUILD, timeout=120)
        self.kernel.run(EQUAL, timeout=60)


def expected(fault: Fault) -> str:
    """The class of the error with which a cell with this fault ends."""
    if fault.kind in ENDS_A_RANK:
        return "RankDied"
    names = {"raise": "Injected", "interrupt": "KeyboardInterrupt", "exhaust": "MemoryError"}
    return names[fault.kind] if fault.kind in FAILS_THE_CELL else ""
