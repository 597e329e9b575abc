"""Frameworks as names of a test module that only its ranks import, on first use: ``from hvdtest.lazy import hvd, torch``."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__all__ = ["hvd", "torch"]

if TYPE_CHECKING:
    import torch

    hvd: Any
else:

    class _Lazy:
        """A module that the first use of one of its names imports."""

        def __init__(self, module: str) -> None:
            self.__dict__["module"] = module

        def __getattr__(self, name: str) -> Any:
            return getattr(importlib.import_module(self.__dict__["module"]), name)

        def __setattr__(self, name: str, value: Any) -> None:
            setattr(importlib.import_module(self.__dict__["module"]), name, value)

        def __reduce__(self) -> tuple[Any, ...]:
            return _Lazy, (self.__dict__["module"],)

    torch, hvd = _Lazy("torch"), _Lazy("hvd_kernel.torch")
