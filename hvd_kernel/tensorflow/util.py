"""Small helpers under Horovod's names, for programs that import ``horovod.tensorflow.util``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf


def _executing_eagerly() -> bool:
    """Return whether eager mode is on."""
    return bool(tf.executing_eagerly())


def _make_subgraph(f: Callable[..., Any]) -> Any:
    """Return the function, traced by TensorFlow."""
    return tf.function(f)


def _cache(f: Callable[..., Any]) -> Callable[..., Any]:
    """Cache a function's results by arguments, separately for eager mode and graphs."""
    results: dict[Any, Any] = {}

    def cached(*args: Any) -> Any:
        key = (args, _executing_eagerly())
        if key not in results:
            results[key] = f(*args)
        return results[key]

    return cached


def _normalize_name(name: str) -> str:
    """Replace all characters of a name except letters, digits and underscores by underscores."""
    return re.sub("[^a-zA-Z0-9_]", "_", name)


def vars_to_refs(vars: Any) -> tuple[Any, ...]:  # noqa: A002 - Horovod's name
    """Return variables, or lists of them, as tuples of hashable references."""
    return tuple(vars_to_refs(entry) if isinstance(entry, list) else entry.ref() for entry in vars)


def refs_to_vars(refs: Iterable[Any]) -> list[Any]:
    """Undo ``vars_to_refs``."""
    return [refs_to_vars(entry) if isinstance(entry, tuple) else entry.deref() for entry in refs]
