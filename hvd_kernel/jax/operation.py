"""Parameters of a collective: its kind, name and options, as attributes of a JAX primitive and of the plugin."""

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
    """Parameters of an operation's primitive, the same for all operands."""

    kind: int
    name: str  # "": named by the number of the call
    set: int = 0
    op: int = Average
    root: int = 0
    size: int = 0  # of the set when the operation was traced, if a shape depends on it
    only: int = -1  # the only rank whose result is not zero; -1: all ranks
    prescale: float = 1.0
    postscale: float = 1.0
    grouped: bool = False
    step: bool = False  # reduces the last gradients of a step
    samples: int = 0  # of the step, if known

    @property
    def wire_name(self) -> str:
        """Horovod's name of the operation, by which ranks match it."""
        return f"{'grouped_' if self.grouped else ''}{KINDS[self.kind]}.{self.name}" if self.name else ""

    @property
    def is_linear(self) -> bool:
        """Whether the operation is linear: a sum of operands gives the sum of results."""
        return self.kind not in {ALLREDUCE, REDUCESCATTER} or self.op in {Average, Sum}

    @property
    def parameters(self) -> dict[str, Any]:
        """Keyword arguments for ``Primitive.bind``."""
        return self._asdict()

    @property
    def attributes(self) -> dict[str, Any]:
        """Attributes for the plugin: native/jax/read.cc."""
        numbers = {"kind": self.kind, "set": self.set, "op": self.op, "root": self.root}
        numbers |= {"size": self.size, "only": self.only, "step": int(self.step), "samples": self.samples}
        scales = {"prescale": np.float64(self.prescale), "postscale": np.float64(self.postscale)}
        return {"name": self.wire_name} | {name: np.int32(number) for name, number in numbers.items()} | scales

    def but(self, **changes: Any) -> Self:
        """Return a copy with changed parameters."""
        return self._replace(**changes)
