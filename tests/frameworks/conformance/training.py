"""Table of trainings that every framework must do alike: gradients of each rank, options, and NumPy's parameters after each step.

Parameters begin as zeros, and gradient descent with a rate of 1 subtracts the reduced gradients. All gradients are multiples of 12,
so that means over up to four ranks are exact, also in 16 bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from frameworks.conformance.table import Value

SHAPES = ((2, 3), (4,), (1,))  # of the parameters
STEPS = 3
LAST = 9  # number of the step after the join of all ranks


@dataclass(frozen=True)
class Training:
    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    passes: int = 1
    unused: frozenset[int] = frozenset()  # parameters on which no rank's loss depends
    missing: frozenset[int] = frozenset()  # parameters on which the loss of rank 0 alone depends
    local: frozenset[int] = frozenset()  # parameters whose gradients stay on their rank
    apart: bool = False  # ranks with an even number reduce among themselves, the others not at all
    joins: bool = False  # rank r joins after r + 1 steps; then all take one more
    parallel: bool = False  # the gradients of rank r are those of rank 0 times 2**r
    most_ranks: int = 4

    @property
    def traits(self) -> set[str]:
        """Return the features that a trainer must support beyond plain steps."""
        found = {name for name in ("unused", "missing", "local", "apart", "joins") if getattr(self, name)}
        options = {f"op {value}" if name == "op" else name for name, value in self.options.items()}
        return found | options

    def steps(self, rank: int) -> list[int]:
        """Return the numbers of a rank's steps; the last one follows the join of all ranks."""
        return [*range(rank + 1), LAST] if self.joins else list(range(STEPS))

    def is_counted(self, rank: int) -> bool:
        """Tell whether every framework counts the steps of a rank: with Adasum, and outside of a set, only some do."""
        return self.options.get("op") != "Adasum" and not (self.apart and rank % 2)

    def gradients(self, rank: int, step: int) -> list[list[Value | None]]:
        """Return a rank's gradient of each parameter for each pass; None: the loss does not depend on it."""
        without = self.unused | (self.missing if rank else frozenset())
        return [
            [
                None if number in without else Value(self._numbers(rank, step * self.passes + index, number), "float32")
                for number in range(len(SHAPES))
            ]
            for index in range(self.passes)
        ]

    def expected(self, rank: int, size: int) -> list[list[Value]]:
        """Return the parameters of a rank after each step."""
        values, found = [np.zeros(shape) for shape in SHAPES], []
        for step in self.steps(rank):
            for number in range(len(SHAPES)):
                values[number] = values[number] - self._reduced(number, step, rank, size)
            found.append([Value(value, "float32") for value in values])
        return found

    def _numbers(self, rank: int, index: int, number: int) -> np.ndarray:
        shape = SHAPES[number]
        places = np.arange(np.prod(shape)).reshape(shape) + 2 * index + number
        return (places % 7 - 3) * 12.0 * 2**rank if self.parallel else ((places + 5 * rank) % 7 - 3) * 12.0

    def _sum(self, number: int, step: int, rank: int) -> np.ndarray:
        grads = [one[number] for one in self.gradients(rank, step)]
        total = np.sum([np.zeros(SHAPES[number]) if grad is None else grad.numbers for grad in grads], axis=0)
        averaged = self.options.get("average_aggregated_gradients")
        return np.asarray(total / self.passes if averaged else total)

    def _reduced(self, number: int, step: int, rank: int, size: int) -> np.ndarray:
        own = self._sum(number, step, rank)
        if number in self.local:
            return own / (size if self.options.get("scale_local_gradients", True) else 1)
        if self.apart and rank % 2:
            return own
        members = range(0, size, 2 if self.apart else 1)
        total = sum(self._sum(number, step, other) for other in members if step in self.steps(other))
        return np.asarray(total if self.options.get("op") == "Sum" else total / len(members))


def trainings() -> Iterator[Training]:
    yield Training("average")
    yield Training("sum", {"op": "Sum"})
    yield Training("predivided", {"gradient_predivide_factor": 2.0})
    yield Training("Adasum of parallel gradients, which is their mean", {"op": "Adasum"}, parallel=True, most_ranks=2)
    for name, groups in {"one group": 1, "two groups": 2, "more groups than parameters": 5, "lists": [[0, 2]]}.items():
        yield Training(name, {"groups": groups})
    for kind in ("fp16", "bf16"):
        yield Training(kind, {"compression": kind})
        yield Training(f"{kind} and two groups", {"compression": kind, "groups": 2})
    passes: dict[str, Any] = {"backward_passes_per_step": 2}
    yield Training("sum of two passes", passes, 2)
    yield Training("mean of two passes", passes | {"average_aggregated_gradients": True}, 2)
    yield Training("two passes, lists, predivided", passes | {"groups": [[0, 2]], "gradient_predivide_factor": 4.0}, 2)
    together = {"compression": "fp16", "gradient_predivide_factor": 2.0}
    yield Training("two passes, groups, fp16, predivided", passes | {"groups": 2} | together, 2)
    yield Training("parameter that no rank uses", unused=frozenset([1]))
    yield Training("parameter that rank 0 alone uses", missing=frozenset([1]))
    yield Training("local parameter", local=frozenset([0]))
    yield Training("local parameter as it is", {"scale_local_gradients": False}, local=frozenset([0]))
    yield Training("process set", apart=True)
    yield Training("process set and one group", {"groups": 1}, apart=True)
    copies = {"gradients_in_buckets": False}
    yield Training("copies", copies)
    variants: dict[str, dict[str, Any]] = {
        "": {},
        " in a group": {"groups": 1},
        " of two passes": passes,
        " of copies": copies,
    }
    for name, options in variants.items():
        yield Training(f"uneven batches{name}", options, 2 if options == passes else 1, joins=True)
    yield Training("uneven batches with a parameter that no rank uses", unused=frozenset([1]), joins=True)


# Options that an optimizer refuses on each rank, by the message
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "predivided sum": (
        {"op": "Sum", "gradient_predivide_factor": 2.0},
        "gradient_predivide_factor not supported with op != Average",
    ),
    "no passes": ({"backward_passes_per_step": 0}, "backward_passes_per_step must be > 0"),
    "fewer groups than none": ({"groups": -1}, "groups should be a non-negative integer or a list of list of"),
    "groups by a word": ({"groups": "all"}, "groups should be a non-negative integer or a list of list of"),
    "Adasum of averaged passes": (
        {"op": "Adasum", "average_aggregated_gradients": True},
        "Adasum does not support average_aggregated_gradients == True",
    ),
    "an unknown set": ({"process_set": "unknown"}, "Process set provided does not exist, or has not been registered."),
}
