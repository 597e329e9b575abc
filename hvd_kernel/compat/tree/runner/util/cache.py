"""``horovod.runner.util.cache``: results that need not be found out again for a while; here within this process."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Hashable
from typing import Any


class Cache:
    """Results by key. The folder, which Horovod's writes to, is accepted."""

    def __init__(self, cache_folder: str, cache_staleness_threshold_in_minutes: float, parameters_hash: str) -> None:
        del cache_folder, parameters_hash  # Horovod's: nothing is kept for another process
        self._seconds = 60 * cache_staleness_threshold_in_minutes
        self._found: dict[Hashable, tuple[float, Any]] = {}

    def get(self, key: Hashable) -> Any:
        """Return what was put, None where there is nothing or it is too old."""
        when, value = self._found.get(key, (float("-inf"), None))
        return value if time.monotonic() - when <= self._seconds else None

    def put(self, key: Hashable, val: Any) -> None:
        """Keep a result."""
        self._found[key] = time.monotonic(), val


def use_cache() -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator: the function takes ``fn_cache=`` besides, which keeps what it returns and is not None."""

    def decorated(func: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(func)
        def call(*args: Any, fn_cache: Cache | None = None, **kwargs: Any) -> Any:
            if fn_cache is None:
                return func(*args, **kwargs)
            key = func.__name__, repr(args), repr(sorted(kwargs.items()))
            found = fn_cache.get(key)
            if found is None and (found := func(*args, **kwargs)) is not None:
                fn_cache.put(key, found)
            return found

        return call

    return decorated
