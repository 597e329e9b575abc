"""Tests in Horovod's style: the pytest process itself is the rank, `hvdrun -np N python -m pytest tests/frameworks/parallel`.

Any N will do, 1 without hvdrun too. A rank that fails a test stops there (-x), and hvdrun ends the others.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

_SIZES = ("HOROVOD_SIZE", "OMPI_COMM_WORLD_SIZE")


@pytest.fixture(scope="module", autouse=True)
def own_world() -> Iterator[None]:
    """Start each file with communication that no other test has used, and leave none."""
    import hvd_kernel.torch as hvd

    hvd.shutdown()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOROVOD_DYNAMIC_PROCESS_SETS", "1")
        yield
        hvd.shutdown()


@pytest.fixture(autouse=True)
def in_step(own_world: None) -> None:
    """Bring the ranks' calls to the same number, after which Horovod names unnamed operations.

    A test in which ranks do different things leaves them apart; a call that is refused counts too.
    """
    import torch

    import hvd_kernel.torch as hvd

    if not hvd.is_initialized():
        return
    calls = hvd.allreduce_async(torch.ones(1), name="in step")
    hvd.synchronize(calls)
    most = int(hvd.allreduce(torch.tensor([calls]), name="furthest", op=hvd.Max))
    for _ in range(most - calls):
        with pytest.raises(ValueError, match="Number of entries in splits"):
            hvd.alltoall(torch.ones(1), [1] * (hvd.size() + 1))


@pytest.fixture
def started() -> int:
    """Return the number of ranks according to the launcher of this process."""
    return next((int(os.environ[name]) for name in _SIZES if name in os.environ), 1)
