"""NumPy's adapter: its arrays, types and random generators."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from hvd_kernel.frameworks.adapter import Elements, FrameworkAdapter


class NumpyAdapter(FrameworkAdapter):
    """Adapter for arrays and scalars; subclasses give their elements another meaning, and are not compared."""

    def facts(self, value: Any) -> Mapping[str, str] | None:
        """Return shape and dtype."""
        if not isinstance(value, np.ndarray | np.generic):
            return None
        return {"shape": str(value.shape), "dtype": str(value.dtype)}

    def elements(self, value: Any) -> Elements | None:
        """Return the elements of an array or scalar without objects."""
        if type(value) not in {np.ndarray, np.memmap} and not isinstance(value, np.generic):
            return None
        array = np.asarray(value)
        return None if array.dtype.hasobject else elements_of(array)

    def state(self, value: Any) -> Any:
        """Return the state of a random generator."""
        if isinstance(value, np.random.Generator):
            return value.bit_generator.state
        return value.get_state(legacy=False) if isinstance(value, np.random.RandomState) else value

    def nbytes(self, value: Any) -> int | None:
        """Return the size of an array in bytes."""
        return int(value.nbytes) if isinstance(value, np.ndarray) else None

    def written(self) -> Iterable[type]:
        """Return NumPy's dtype class."""
        return (np.dtype,)

    def seeds(self) -> Mapping[str, Any]:
        """Return the state of the global generator."""
        return {"numpy": np.random.get_state(legacy=False)}  # noqa: NPY002 - the global one


def elements_of(array: np.ndarray[Any, Any], kind: str = "array") -> Elements:
    """Return the elements of an array; types of ml_dtypes, such as bfloat16, are read as float64."""
    flat = np.ascontiguousarray(array).reshape(-1)
    foreign = flat.dtype.kind == "V" and "float" in flat.dtype.name
    itemsize = max(1, flat.dtype.itemsize)
    return Elements(
        kind,
        str(array.dtype),
        tuple(array.shape),
        itemsize,
        len(flat),
        lambda part: flat[part].view(np.uint8),
        lambda part: flat[part].astype(np.float64) if foreign else flat[part],
    )


ADAPTER = NumpyAdapter()
