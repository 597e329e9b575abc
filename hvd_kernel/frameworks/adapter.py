"""Interface of framework adapters: how a rank handles values of a framework, such as tensors and models.

Terms.
  elements  the numbers in an array or tensor, in row-major order
  state     the contents of an object that holds tensors: a model, an optimizer, a random generator
"""

# ruff: noqa: ARG002 - arguments are for adapters that override these methods

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

import numpy as np

Flat = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Elements:
    """The numbers in an array or tensor, read in parts, so that a tensor on a device is not copied as a whole."""

    kind: str  # "array" or "tensor": an array never equals a tensor
    dtype: str  # NumPy's name: "float32", "bfloat16"
    shape: tuple[int, ...]
    itemsize: int
    count: int
    raw: Callable[[slice], Flat]  # the bytes of elements, as uint8
    numbers: Callable[[slice], Flat]  # elements as a real or complex NumPy type

    @property
    def text(self) -> str:
        """Dtype and shape: ``float32 (3, 4)``."""
        return f"{self.dtype} {self.shape}"


@dataclass(frozen=True)
class TensorShard:
    """Part of a distributed tensor that one rank holds."""

    text: str  # the whole tensor: type, shape, placements and mesh
    key: str  # equal on ranks that hold the same part; "" where every rank holds all of it
    local: Any  # the part, as an ordinary tensor


class FrameworkAdapter:
    """Base class of adapters; its methods return the defaults of a framework without any support.

    An adapter is used only while its framework is imported. It reads values and runs no user code, except through the
    framework's methods.
    """

    def facts(self, value: Any) -> Mapping[str, str | int] | None:
        """Return ``shape`` and ``dtype`` of a tensor as text; None if it is not a tensor of this framework.

        Distributed tensors, and models of them, also have their layout as ``value``, and as ``local`` the bytes of this
        rank.
        """
        return None

    def elements(self, value: Any) -> Elements | None:
        """Return the elements of a tensor; None if it is not a tensor of this framework, or has no plain bytes."""
        return None

    def shard(self, value: Any) -> TensorShard | None:
        """Return this rank's part of a distributed tensor, without communication; None: it is no such tensor."""
        return None

    def state(self, value: Any) -> Any:
        """Return the state of an object, or the object itself if it has no state."""
        return value

    def nbytes(self, value: Any) -> int | None:
        """Return the size of a tensor in bytes; None if it is not a tensor of this framework."""
        return None

    def written(self) -> Iterable[type]:
        """Return classes whose objects are compared by their text: devices, types."""
        return ()

    def parts(self, value: Any) -> Mapping[str, Mapping[str, Any]]:
        """Return the attributes that an object looks up in ``__getattr__``, by the dictionary that holds them."""
        return {}

    def seeds(self) -> Mapping[str, Any]:
        """Return the states of the framework's global random generators, by name."""
        return {}

    def reduced(self, value: Any) -> Any:
        """Return how pickle rebuilds a value in another process, like ``__reduce__``; NotImplemented: by default."""
        return NotImplemented

    def write(self, values: Mapping[str, Any], file: IO[bytes], pickler: type[Any]) -> None:
        """Write values as an archive that keeps shared memory shared; ``pickler`` writes values without tensors."""
        raise NotImplementedError

    def read(self, file: IO[bytes], device: Any) -> dict[str, Any]:
        """Read an archive of ``write``; move tensors from the device of the writing rank to ``device``."""
        raise NotImplementedError

    def device(self, local_rank: int, named: Sequence[int]) -> Any:
        """Return the framework's device of this rank; ``named`` are the GPUs of ``--gpus``.

        Raises
        ------
        ConfigError
            The framework does not see all of these GPUs.
        """
        return "cpu"

    def device_uuid(self, local_rank: int) -> str | None:
        """Return the UUID of the GPU that this rank has used; None if it has used no GPU, or it is unknown."""
        return None

    def gradient_bytes(self, value: Any) -> int:
        """Return the size of the current gradients of a model or tensor, in bytes."""
        return 0

    def alive_bytes(self) -> Mapping[str, int]:
        """Return the size in bytes of all ``tensors`` of this process, counted once, and of some parts.

        The parts are ``gradients``, ``optimizer state`` (tensors created by optimizers) and ``parameters`` (trainable
        tensors). Two frameworks that are used together, such as Keras and its backend, do not report the same bytes
        twice.
        """
        return {}

    unseen = ""
    """A sentence about the parts that cannot be measured in this framework; empty if there are no such parts."""

    def free_unused(self) -> None:
        """Release memory that the framework has cached for new tensors."""

    def store(self, host: str, port: int, patience_s: float) -> Any:
        """Return a client of the key-value store of the framework's launcher, with ``set`` and a blocking ``get``."""
        raise NotImplementedError
