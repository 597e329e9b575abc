"""Waits of a thread in torch, found by its Python frames; imports no code for torch. Any thread may call.

A wait in ``backward`` (DDP), in a future, or on a backend such as Gloo is in C++, where the core and our code see
nothing of it. The frame that has called C++ shows it, if the thread is idle (core/main_thread.py).
"""

from __future__ import annotations

from types import FrameType
from typing import Any, NamedTuple

from hvd_kernel.frameworks.torch_connections import is_on_core
from hvd_kernel.protocol import modules

_DISTRIBUTED = "torch.distributed"
_C10D = "torch.distributed.distributed_c10d"
_BACKWARD = "_engine_run_backward"
_WAITING = ("torch.autograd.graph", "torch.distributed.", "torch.futures", "torch._ops")
_PEERS = {"send": "dst", "recv": "src"}
_HELPERS = (  # that wait for works, in C++ or by methods without a frame; DTensor's own code computes
    "torch.distributed._functional_collectives",
    "torch.distributed.algorithms.",
    "torch.distributed.fsdp.",
    "torch.distributed.utils",
)


class TorchWait(NamedTuple):
    """A wait in torch.distributed, on a backend that is not ours."""

    operation: str
    """Name of the function, such as "all_reduce"."""
    ranks: tuple[int, ...]
    """Ranks that take part in the operation, as far as it is known."""


def may_wait(frame: FrameType | None) -> bool:
    """Return whether a thread with this innermost frame may wait for an operation that another thread completes."""
    return frame is not None and f"{_module(frame)}.".startswith(_WAITING) and not _uses_cuda()


def wait_on_other_backend(frame: FrameType | None) -> TorchWait | None:
    """Return the wait of a thread with this innermost frame; None if it is not in torch.distributed.

    Ranks are those of the group that was passed to the function; of ``send`` and ``recv`` the other rank.
    """
    distributed = modules.loaded(_DISTRIBUTED)
    if frame is None or distributed is None or not distributed.is_available() or _package(frame) != "torch":
        return None
    call = _outermost_call(frame)
    if call is not None:
        name, arguments = call.f_code.co_name, call.f_locals
        if is_on_core(arguments.get("group") or distributed.group.WORLD):
            return None
        return TorchWait(name, _ranks(distributed, name, arguments))
    if not distributed.is_initialized() or is_on_core(distributed.group.WORLD):
        return None
    if _module(frame) == "torch._ops" and frame.f_back is not None:
        frame = frame.f_back
    everyone = tuple(range(distributed.get_world_size()))
    if _module(frame) == "torch.autograd.graph" and frame.f_code.co_name == _BACKWARD:
        return None if _uses_cuda() or len(everyone) == 1 else TorchWait("backward()", everyone)
    return TorchWait(f"{frame.f_code.co_name}()", everyone) if _module(frame).startswith(_HELPERS) else None


def _outermost_call(frame: FrameType | None) -> FrameType | None:
    """Return the public function of torch.distributed that was called first: it is the one in the user's code."""
    outermost = None
    while frame is not None and _package(frame) == "torch":
        name = frame.f_code.co_name
        if _module(frame) == _C10D and not name.startswith("_"):
            outermost = frame
        frame = frame.f_back
    return outermost


def _ranks(distributed: Any, name: str, arguments: dict[str, Any]) -> tuple[int, ...]:
    if not distributed.is_initialized():  # init_process_group itself
        return tuple(range(size)) if isinstance(size := arguments.get("world_size"), int) and size > 0 else ()
    peer = arguments.get(_PEERS.get(name) or "")
    if isinstance(peer, int):
        return (peer,)
    group = arguments.get("group")
    try:
        return tuple(distributed.get_process_group_ranks(group or distributed.group.WORLD))
    except Exception:  # noqa: BLE001 - a group that was destroyed, or of another type
        return ()


def _uses_cuda() -> bool:
    """Return whether threads of the device may run the graph, for which the main thread waits."""
    cuda = modules.loaded("torch.cuda")
    return cuda is not None and bool(cuda.is_initialized())


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _package(frame: FrameType) -> str:
    return _module(frame).partition(".")[0]
