"""The registry of framework adapters, each imported only when its framework is in use.

What is not imported costs nothing: a rank that trains with TensorFlow never touches torch. Only the thread that runs
the user's code imports adapters, with ``settle``: another one could wait for it, and it for that one.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from hvd_kernel.frameworks.adapter import FrameworkAdapter
from hvd_kernel.protocol import serialization

_MODULES = {  # a package -> where its adapter is; Keras before what it may stand on
    "numpy": "hvd_kernel.numpy.adapter",
    "keras": "hvd_kernel.keras.adapter",
    "tf_keras": "hvd_kernel.keras.adapter",
    "tensorflow": "hvd_kernel.tensorflow.adapter",
    "mxnet": "hvd_kernel.mxnet.adapter",
    "jax": "hvd_kernel.jax.adapter",
    "torch": "hvd_kernel.torch.adapter",
}
_unusable: set[str] = set()


def adapter(package: str) -> FrameworkAdapter:
    """Return the adapter of a framework, which is imported with it.

    Raises
    ------
    ImportError
        The framework, or a version of it that works, is not installed.
    """
    made: FrameworkAdapter = importlib.import_module(_MODULES[package]).ADAPTER
    return made


def settle() -> None:
    """Import the adapters of the frameworks that have been imported since the last call."""
    for package, name in _MODULES.items():
        if (
            package not in _unusable
            and serialization.loaded(name) is None
            and serialization.loaded(package) is not None
        ):
            _unusable.add(package)
            with suppress(ImportError):  # too old a version: whoever uses it hears so from its own import
                adapter(package)
                _unusable.remove(package)


def in_use() -> Iterator[FrameworkAdapter]:
    """Yield the adapters that have been imported. Any thread."""
    for name in dict.fromkeys(_MODULES.values()):
        module = serialization.loaded(name)
        if module is not None:
            yield module.ADAPTER


def first(question: str, value: Any) -> Any:
    """Return the first answer that is not None to a question about a value; None: nobody knows it.

    Example: ``first("elements", tensor)``.
    """
    return next((found for each in in_use() if (found := getattr(each, question)(value)) is not None), None)
