"""The adapter of a framework: what a rank needs to know of values that are not Python's own.

Terms.
  elements  the numbers in an array or tensor, in the order of its rows
  state     what stands for an object that holds tensors: a model, an optimizer, a random generator
"""

# ruff: noqa: ARG002 - what a question is about, for those who answer it

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

import numpy as np

Flat = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Elements:
    """The numbers in an array or tensor; parts of it are read one at a time, so that a device's needs no copy."""

    kind: str  # "array" or "tensor": equal numbers of two kinds are not equal values
    dtype: str  # as NumPy writes it: "float32", "bfloat16"
    shape: tuple[int, ...]
    itemsize: int
    count: int
    raw: Callable[[slice], Flat]  # their bytes, as uint8
    numbers: Callable[[slice], Flat]  # in a type of NumPy's, complex ones as they are

    @property
    def text(self) -> str:
        """Write type and shape: ``float32 (3, 4)``."""
        return f"{self.dtype} {self.shape}"


@dataclass(frozen=True)
class TensorShard:
    """Part of a distributed tensor that one rank holds."""

    text: str  # the whole tensor: type, shape, placements and mesh
    key: str  # equal on ranks that hold the same part; "" where every rank holds all of it
    local: Any  # the part, as an ordinary tensor


class FrameworkAdapter:
    """What a framework's adapter answers; these are the answers of one that knows nothing.

    An adapter is asked only while its framework is imported. It reads what it is given and never runs the user's code
    beyond the framework's own methods.
    """

    def facts(self, value: Any) -> Mapping[str, str] | None:
        """Return ``shape`` and ``dtype`` of a tensor as people read them; None: it is none of this framework's."""
        return None

    def elements(self, value: Any) -> Elements | None:
        """Return the elements; None: it is not a tensor of this framework's, or has no plain bytes."""
        return None

    def shard(self, value: Any) -> TensorShard | None:
        """Return this rank's part of a distributed tensor, without communication; None: it is no such tensor."""
        return None

    def state(self, value: Any) -> Any:
        """Return what stands for an object with a state; the value itself where it has none."""
        return value

    def nbytes(self, value: Any) -> int | None:
        """Return the size of a tensor; None: it is none of this framework's."""
        return None

    def written(self) -> Iterable[type]:
        """Return classes whose objects are equal when their texts are: devices, types."""
        return ()

    def parts(self, value: Any) -> Mapping[str, Mapping[str, Any]]:
        """Return attributes that an object finds by ``__getattr__``, in the places where it keeps them."""
        return {}

    def seeds(self) -> Mapping[str, Any]:
        """Return the states of the framework's global random generators, by name."""
        return {}

    def reduced(self, value: Any) -> Any:
        """Return how pickle is to make a value again elsewhere, as ``__reduce__`` does; NotImplemented: as it likes."""
        return NotImplemented

    def write(self, values: Mapping[str, Any], file: IO[bytes], pickler: type[Any]) -> None:
        """Write values as the framework's archive: what shares memory does so there too. ``pickler``: for the rest."""
        raise NotImplementedError

    def read(self, file: IO[bytes], device: Any) -> dict[str, Any]:
        """Read such an archive; what was on another rank's device comes to this one's."""
        raise NotImplementedError

    def device(self, local_rank: int, named: Sequence[int]) -> Any:
        """Return the device of this rank, as the framework names it; ``named``: the GPUs that ``--gpus`` names.

        Raises
        ------
        ConfigError
            The framework does not see all that are named.
        """
        return "cpu"

    def device_uuid(self, local_rank: int) -> str | None:
        """Return the UUID of the GPU that this rank has used; None: it has used none so far, or cannot tell."""
        return None

    def gradient_bytes(self, value: Any) -> int:
        """Return the size of the gradients that a model, or a tensor, has by now."""
        return 0

    def alive_bytes(self) -> Mapping[str, int]:
        """Return the size of all ``tensors`` of this process, each once, whoever holds them, and of parts of these.

        The parts: ``gradients``, ``optimizer state``, the tensors that optimizers have made, and ``parameters``, those
        that train. Two frameworks that are in use together, as Keras and its backend, do not tell the same bytes.
        """
        return {}

    unseen = ""
    """Which of these parts the framework lets nobody see, in one sentence."""

    def free_unused(self) -> None:
        """Give memory back that the framework keeps for its next tensors."""

    def store(self, host: str, port: int, patience_s: float) -> Any:
        """Return a client of the store that the framework's own launcher serves: ``set``, and ``get``, which waits."""
        raise NotImplementedError
