"""Waits in torch.distributed, found by frames: which function of the user's it is, and which ranks take part."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from types import FrameType, SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist

from hvd_kernel.frameworks.torch_waits import TorchWait, may_wait, wait_on_other_backend

C10D = "torch.distributed.distributed_c10d"


def stack(*calls: tuple[str, str], **arguments: Any) -> FrameType:
    """Return the innermost frame of calls (module, function), outermost first; the arguments are of each."""
    frame: Any = None
    for module, function in calls:
        code = SimpleNamespace(co_name=function)
        frame = SimpleNamespace(f_code=code, f_globals={"__name__": module}, f_back=frame, f_locals=arguments)
    innermost: FrameType = frame
    return innermost


@pytest.fixture
def alone() -> Iterator[None]:
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/store", 1), rank=0, world_size=1)
        yield
        dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
def test_the_function_that_the_user_called_is_named() -> None:
    wrapper = "torch.distributed.c10d_logger", "wrapper"
    one = stack(("__main__", "train"), wrapper, (C10D, "all_gather_object"), wrapper, (C10D, "all_gather"), group=None)
    assert wait_on_other_backend(one) == TorchWait("all_gather_object", (0,))
    for function, peer in (("send", "dst"), ("recv", "src")):
        frame = stack((C10D, function), (C10D, "_rank_not_in_group"), group=None, **{peer: 5})
        assert wait_on_other_backend(frame) == TorchWait(function, (5,))
    fsdp = stack((f"{C10D[:17]}.fsdp._fully_shard._fsdp_collectives", "foreach_all_gather_copy_out"))
    assert wait_on_other_backend(fsdp) == TorchWait("foreach_all_gather_copy_out()", (0,))
    assert wait_on_other_backend(stack((C10D, "barrier"), ("time", "sleep"))) is None
    waits = stack((f"{C10D[:17]}._functional_collectives", "wait_tensor"), ("torch._ops", "__call__"))
    assert wait_on_other_backend(waits) == TorchWait("wait_tensor()", (0,))
    assert wait_on_other_backend(stack((f"{C10D[:17]}.tensor._dispatch", "dispatch"))) is None, "it computes"
    ours = SimpleNamespace(engine=None)
    assert wait_on_other_backend(stack((C10D, "barrier"), group=ours)) is None, "the core knows"
    assert wait_on_other_backend(stack(("torch.nn.modules.linear", "forward"))) is None
    assert wait_on_other_backend(stack(("torch.autograd.graph", "_engine_run_backward"))) is None, "no other rank"


def test_before_a_group_exists_only_its_creation_waits() -> None:
    created = stack(
        (C10D, "init_process_group"), ("torch.distributed.rendezvous", "_env_rendezvous_handler"), world_size=3
    )
    assert wait_on_other_backend(created) == TorchWait("init_process_group", (0, 1, 2))
    assert wait_on_other_backend(stack(("torch.distributed.utils", "any"))) is None
    assert wait_on_other_backend(None) is None


def test_threads_complete_what_autograd_waits_for() -> None:
    assert may_wait(stack(("torch.autograd.graph", "_engine_run_backward")))
    assert may_wait(stack(("torch.futures", "wait")))
    assert not may_wait(stack(("torch.utils.data.dataloader", "_try_get_data")))
    assert not may_wait(None)
