"""Small helpers under Horovod's names, for programs that import ``horovod.tensorflow.util``; nothing of ours does."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf


def _executing_eagerly() -> bool:
    """Tell whether operations run at once."""
    return bool(tf.executing_eagerly())


def _make_subgraph(f: Callable[..., Any]) -> Any:
    """Return the function, traced by TensorFlow."""
    return tf.function(f)


def _cache(f: Callable[..., Any]) -> Callable[..., Any]:
    """Remember what a function returned for the same arguments, in eager mode and in graphs apart."""
    known: dict[Any, Any] = {}

    def remembered(*args: Any) -> Any:
        key = (args, _executing_eagerly())
        if key not in known:
            known[key] = f(*args)
        return known[key]

    return remembered


def _normalize_name(name: str) -> str:
    """Return a name with nothing but letters, digits and underscores."""
    return re.sub("[^a-zA-Z0-9_]", "_", name)


def vars_to_refs(vars: Any) -> tuple[Any, ...]:  # noqa: A002 - Horovod's name
    """Return variables, or lists of them, as tuples of what can be hashed."""
    return tuple(vars_to_refs(each) if isinstance(each, list) else each.ref() for each in vars)


def refs_to_vars(refs: Iterable[Any]) -> list[Any]:
    """Undo ``vars_to_refs``."""
    return [refs_to_vars(each) if isinstance(each, tuple) else each.deref() for each in refs]
