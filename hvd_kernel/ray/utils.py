"""``horovod.ray.utils``: Ray itself, where it is installed, and what is asked of many actors at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from hvd_kernel.errors import UsageError


def ray_api() -> Any:
    """Return Ray's module.

    Raises
    ------
    UsageError
        It is not installed.
    """
    try:
        import ray  # noqa: PLC0415 - the package without it has no Ray

        ray.util.placement_group  # noqa: B018 - a folder named ray is none
    except (ImportError, AttributeError) as error:
        raise UsageError("hvd_kernel.ray needs Ray: pip install 'hvd-kernel[ray]'.") from error
    return ray


def map_blocking(fn: Callable[[Any], Any], collection: Iterable[Any]) -> list[Any]:
    """Return what the calls give whose references ``fn`` returns for each of the collection, in its order.

    Examples
    --------
    With actors of Ray::

        map_blocking(lambda worker: worker.node_id.remote(), workers)
    """
    found: list[Any] = ray_api().get([fn(each) for each in collection])
    return found
