"""Registration of the backend, and creation of its process groups, which torch requests by name."""

from __future__ import annotations

from typing import Any

from hvd_kernel.formatting.install_command import install_command
from hvd_kernel.torch.distributed.groups import BACKEND, SharedEngine, group_engine

NOT_BUILT = "This torch was built without torch.distributed. Install another build: {command}"


def register() -> None:
    """Make ``init_process_group("hvd")`` and ``new_group(backend="hvd")`` known to torch. Idempotent.

    Raises
    ------
    RuntimeError
        This build of torch has no torch.distributed.

    Examples
    --------
    >>> import tempfile
    >>> import torch.distributed as dist
    >>> from hvd_kernel.torch.distributed import register
    >>> register()
    >>> store = dist.FileStore(tempfile.mktemp(), 1)
    >>> dist.init_process_group("hvd", store=store, rank=0, world_size=1)
    >>> dist.get_backend()
    'hvd'
    >>> dist.destroy_process_group()
    """
    import torch.distributed as dist  # noqa: PLC0415 - absent from some builds of torch

    if not dist.is_available():
        raise RuntimeError(NOT_BUILT.format(command=install_command("torch")))
    if not is_registered():
        dist.Backend.register_backend(BACKEND, create_group, extended_api=True, devices=["cpu"])


def is_registered() -> bool:
    """Return whether torch knows the backend.

    Examples
    --------
    >>> from hvd_kernel.torch.distributed import is_registered, register
    >>> register()
    >>> is_registered()
    True
    """
    import torch.distributed as dist  # noqa: PLC0415 - see register

    return dist.is_available() and BACKEND in dist.Backend.backend_list


def create_group(options: Any, _backend_options: Any = None) -> Any:
    """Create a process group for ``init_process_group`` and ``new_group``; its members all call this."""
    import torch.distributed as dist  # noqa: PLC0415 - see register

    from hvd_kernel.torch.distributed.process_group import HvdProcessGroup  # noqa: PLC0415

    members = list(options.global_ranks_in_group)
    parent = None
    if members and members == list(range(dist.get_world_size())):
        default = dist.distributed_c10d._get_default_group()  # noqa: SLF001 - torch has no public name for it
        parent = default.engine if isinstance(default, HvdProcessGroup) else None
    engine = group_engine(
        options.store,
        options.group_rank,
        options.group_size,
        options.group_id,
        ranks=members,
        parent=parent if isinstance(parent, SharedEngine) else None,
    )
    return HvdProcessGroup(engine, options)
