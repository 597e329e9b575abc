"""Default groups of torch.distributed among the ranks of a pool, on our backend and on Gloo.

Terms.
  folder  a folder that the ranks of one test share; each world has a store of its own in it
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

_worlds = count()


def is_before(*version: int) -> bool:
    """Return whether this torch is older than a version, as in ``is_before(2, 6)``."""
    import torch

    return tuple(map(int, torch.__version__.split(".")[:2])) < version


@contextmanager
def world(backend: str, folder: str, **options: Any) -> Iterator[Any]:
    """Yield torch.distributed with a default group of all ranks; it is destroyed afterwards."""
    import torch

    import hvd_kernel.torch as hvd
    from hvd_kernel.torch.distributed import register

    dist: Any = torch.distributed

    torch.set_num_threads(1)
    register()
    place = {"rank": hvd.rank(), "world_size": hvd.size(), "timeout": timedelta(seconds=60)}
    store = dist.FileStore(str(Path(folder) / f"store{next(_worlds)}"), hvd.size())
    dist.init_process_group(backend, store=store, **{**place, **options})
    try:
        yield dist
    finally:
        dist.destroy_process_group()


def on_both(program: Callable[..., Any], folder: str, *args: Any) -> tuple[Any, Any]:
    """Return what a program returns on our backend, and on Gloo."""
    with world("hvd", folder) as dist:
        ours = program(dist, *args)
    with world("gloo", folder) as dist:
        return ours, program(dist, *args)


def bits(value: Any) -> Any:
    """Return a value with each tensor as type, shape and bytes, which JSON and == compare."""
    import torch

    if isinstance(value, torch.Tensor):
        plain = value.detach().to_dense() if value.layout is not torch.strided else value.detach()
        content = plain.resolve_conj().contiguous().reshape(-1).view(torch.uint8).tolist() if plain.numel() else []
        return [str(plain.dtype), list(plain.shape), content]
    if isinstance(value, dict):
        return {str(key): bits(part) for key, part in value.items()}
    return [bits(part) for part in value] if isinstance(value, (list, tuple)) else value
