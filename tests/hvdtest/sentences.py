"""Faults as sentences: "kill rank 1 at step 3". Pure; the ranks' half is in inject.py.

kill|exit|segfault rank R at step S        the process ends: SIGKILL, os._exit(0), a null pointer
raise on rank R at step S                  an exception of the user's
stop rank R at step S for T s              SIGSTOP, and SIGCONT after T seconds
interrupt at step S                        the interrupt key, while rank 0 is there
exhaust memory of rank R at step S         an allocation beyond what the rank may have
flood rank R at step S with N MB           text, as fast as it goes
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

ENDS_A_RANK = ("kill", "exit", "segfault")
FAILS_THE_CELL = (*ENDS_A_RANK, "raise", "interrupt", "exhaust")

_NUMBER = r"(?P<amount>\d+(?:\.\d+)?)"
_FORMS = {
    "kill": r"kill rank (?P<rank>\d+) at step (?P<step>\d+)",
    "exit": r"exit rank (?P<rank>\d+) at step (?P<step>\d+)",
    "segfault": r"segfault rank (?P<rank>\d+) at step (?P<step>\d+)",
    "raise": r"raise on rank (?P<rank>\d+) at step (?P<step>\d+)",
    "stop": rf"stop rank (?P<rank>\d+) at step (?P<step>\d+) for {_NUMBER} s",
    "interrupt": r"interrupt at step (?P<step>\d+)",
    "exhaust": r"exhaust memory of rank (?P<rank>\d+) at step (?P<step>\d+)",
    "flood": rf"flood rank (?P<rank>\d+) at step (?P<step>\d+) with {_NUMBER} MB",
}


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong on one rank at one step."""

    kind: str
    rank: int
    step: int
    amount: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """For the rank that is to do it, as JSON."""
        return asdict(self)

    def __str__(self) -> str:
        amount = f"{self.amount:g}"
        return {
            "raise": f"raise on rank {self.rank} at step {self.step}",
            "stop": f"stop rank {self.rank} at step {self.step} for {amount} s",
            "interrupt": f"interrupt at step {self.step}",
            "exhaust": f"exhaust memory of rank {self.rank} at step {self.step}",
            "flood": f"flood rank {self.rank} at step {self.step} with {amount} MB",
        }.get(self.kind, f"{self.kind} rank {self.rank} at step {self.step}")


def parse(sentence: str) -> Fault:
    """Read a sentence.

    Raises
    ------
    ValueError
        If it has none of the forms above.
    """
    for kind, form in _FORMS.items():
        if found := re.fullmatch(form, sentence.strip()):
            said = found.groupdict()
            return Fault(kind, int(said.get("rank", 0)), int(said["step"]), float(said.get("amount", 0)))
    raise ValueError(f"{sentence!r} is not a fault: write one of {', '.join(_FORMS.values())}")


def drawn(chance: random.Random, ranks: int, step: int, kinds: Sequence[tuple[str, float]]) -> Fault:
    """Draw a fault for a step, kinds by their weights."""
    kind = chance.choices([name for name, _ in kinds], [weight for _, weight in kinds])[0]
    amount = {"stop": round(chance.uniform(0.05, 0.3), 2), "flood": 2.0}.get(kind, 0.0)
    return Fault(kind, 0 if kind == "interrupt" else chance.randrange(ranks), step, amount)
