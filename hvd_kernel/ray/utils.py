"""``horovod.ray.utils``: access to Ray's module, and calls of many actors at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from hvd_kernel.errors import UsageError
from hvd_kernel.formatting.install_command import install_command


def ray_api() -> Any:
    """Return Ray's module.

    Raises
    ------
    UsageError
        Ray is not installed.
    """
    try:
        import ray  # noqa: PLC0415 - Ray is an optional dependency

        ray.util.placement_group  # noqa: B018 - missing if a folder named ray was imported
    except (ImportError, AttributeError) as error:
        raise UsageError(f"hvd_kernel.ray needs Ray: {install_command('ray')}.") from error
    return ray


def reason_of(error: BaseException) -> str:
    """Return Ray's reason why an actor has ended, on one line: what has happened, and the cause if Ray knows it."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return " ".join(dict.fromkeys(line.strip() for line in (*lines[:1], *lines[-1:]))) or type(error).__name__


def map_blocking(fn: Callable[[Any], Any], collection: Iterable[Any]) -> list[Any]:
    """Call ``fn``, which returns a reference, for each element; wait, and return the values in the same order.

    Examples
    --------
    With actors of Ray::

        map_blocking(lambda worker: worker.node_id.remote(), workers)
    """
    values: list[Any] = ray_api().get([fn(element) for element in collection])
    return values
