"""A collective as JAX's programs and the core know it: its kind, its name, and how it is carried out."""

from __future__ import annotations

from typing import Any, NamedTuple, Self

import numpy as np

from hvd_kernel.core.tensor import Average, Sum

ALLREDUCE, ALLGATHER, BROADCAST, ALLTOALL, REDUCESCATTER = 0, 1, 2, 5, 6  # native/c_api/hvd_core.h
BARRIER = 3
KINDS = {
    ALLREDUCE: "allreduce",
    ALLGATHER: "allgather",
    BROADCAST: "broadcast",
    ALLTOALL: "alltoall",
    REDUCESCATTER: "reducescatter",
}
ELEMENTWISE = (ALLREDUCE, BROADCAST)


class OperationParams(NamedTuple):
    """What is the same for all operands of an operation: the parameters of its primitive."""

    kind: int
    name: str  # "": by the number of the call
    set: int = 0
    op: int = Average
    root: int = 0
    size: int = 0  # of the set when it was traced, where a shape depends on it
    only: int = -1  # a rank: the others' results are zero
    prescale: float = 1.0
    postscale: float = 1.0
    grouped: bool = False
    step: bool = False  # it reduces the last of a step's gradients
    samples: int = 0  # of the step, where it is known

    @property
    def wire_name(self) -> str:
        """Its name as ranks meet by it: Horovod's."""
        return f"{'grouped_' if self.grouped else ''}{KINDS[self.kind]}.{self.name}" if self.name else ""

    @property
    def is_linear(self) -> bool:
        """Whether a sum of operands gives the sum of results."""
        return self.kind not in {ALLREDUCE, REDUCESCATTER} or self.op in {Average, Sum}

    @property
    def parameters(self) -> dict[str, Any]:
        """Itself, for ``Primitive.bind``."""
        return self._asdict()

    @property
    def attributes(self) -> dict[str, Any]:
        """Itself, for the plugin: native/jax/read.cc."""
        numbers = {"kind": self.kind, "set": self.set, "op": self.op, "root": self.root}
        numbers |= {"size": self.size, "only": self.only, "step": int(self.step), "samples": self.samples}
        scales = {"prescale": np.float64(self.prescale), "postscale": np.float64(self.postscale)}
        return {"name": self.wire_name} | {name: np.int32(number) for name, number in numbers.items()} | scales

    def but(self, **changes: Any) -> Self:
        """Return one that differs."""
        return self._replace(**changes)
