"""The registry of framework adapters, which are imported only when their framework is in use.

A rank that trains with TensorFlow never imports torch. Only the thread that runs the user's code imports adapters, with
``import_adapters``: with imports in two threads, these could wait for each other's import locks.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from hvd_kernel.frameworks.adapter import FrameworkAdapter
from hvd_kernel.protocol import modules

_MODULES = {  # package -> module of its adapter; Keras before its backends
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
    """Import and return the adapter of a framework, and the framework.

    Raises
    ------
    ImportError
        The framework is not installed, or its version is not supported.
    """
    instance: FrameworkAdapter = importlib.import_module(_MODULES[package]).ADAPTER
    return instance


def import_adapters() -> None:
    """Import the adapters of the frameworks that have been imported since the last call."""
    for package, name in _MODULES.items():
        if package not in _unusable and modules.loaded(name) is None and modules.loaded(package) is not None:
            _unusable.add(package)
            with suppress(ImportError):  # an unsupported version: importing our API of it raises this
                adapter(package)
                _unusable.remove(package)


def in_use() -> Iterator[FrameworkAdapter]:
    """Yield the adapters that have been imported. May be called from any thread."""
    for name in dict.fromkeys(_MODULES.values()):
        module = modules.loaded(name)
        if module is not None:
            yield module.ADAPTER


def first(question: str, value: Any) -> Any:
    """Call a method of all imported adapters with a value; return the first result that is not None, or None.

    Example: ``first("elements", tensor)``.
    """
    answers = (getattr(framework, question)(value) for framework in in_use())
    return next((answer for answer in answers if answer is not None), None)
