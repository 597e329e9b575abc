"""Row C8: ranks started with different settings refuse each other in ``init``, and each names the difference and its host."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from hvdtest.launch import RankPool

pytestmark = pytest.mark.mp

STRANGE = 1  # the rank that differs

# variable, its value on the strange rank, its name and value in the message, the others' value
SETTINGS = (
    ("HVD_SLOTS", "9", "slots", "9", "4"),
    ("HVD_SLOT_BYTES", "65536", "slot_bytes", "65536", "1048576"),
    ("HVD_FANOUT", "2", "fanout", "2", "64"),
    ("HVD_TCP_STREAMS", "3", "tcp_streams", "3", "1"),
    ("HVD_TRANSPORT", "tcp", "transport", "tcp", "auto"),
    ("HVD_ALLREDUCE_ALGORITHM", "ring", "allreduce_algorithm", "ring", "auto"),
    ("HOROVOD_HIERARCHICAL_ALLREDUCE", "0", "hierarchical_allreduce", "0", "1"),
    ("HOROVOD_HIERARCHICAL_ALLGATHER", "0", "hierarchical_allgather", "0", "1"),
    ("HOROVOD_CACHE_CAPACITY", "7", "cache_capacity", "7", "1024"),
    ("HVD_GPU_OPERATIONS", "NCCL", "gpu_operations", "nccl", "auto"),
    ("HVD_GPU_RING", "slices", "gpu_ring", "slices", "auto"),
    ("HVD_GPU_ARENA_BYTES", "65536", "gpu_arena_bytes", "65536", "67108864"),
)


@pytest.fixture(scope="module")
def three() -> Iterator[RankPool]:
    with RankPool(3) as pool:
        yield pool


def refused(variable: str, value: str) -> list[str]:
    """Return the error of ``init`` while a variable differs on rank 1, and that it works once it is equal."""
    import os

    import torch

    import hvd_kernel.torch as hvd

    strange = os.environ["HOROVOD_RANK"] == str(STRANGE)
    if strange:
        os.environ[variable] = value
    try:
        hvd.init()
    except ValueError as error:
        said = [type(error).__name__, str(error)]
    else:
        said = ["", "came in"]
    assert not hvd.is_initialized()
    if strange:
        del os.environ[variable]
    hvd.init()
    assert hvd.allreduce(torch.ones(1), name="after", op=hvd.Sum).item() == hvd.size()
    hvd.shutdown()
    return said


@pytest.mark.parametrize("row", SETTINGS, ids=lambda row: row[2])
def test_c8_a_setting_that_differs(three: RankPool, row: tuple[str, ...]) -> None:
    variable, value, name, its, others = row
    said = three.run(refused, variable, value)
    shown = rf"rank {STRANGE} was started with .*{name}\W{its}\b.* rank 0 with .*{name}\W{others}\b"
    for rank, (kind, text) in enumerate(said):
        assert kind == "ValueError", f"rank {rank}: {text}"
        assert re.search(shown, text, re.DOTALL), f"rank {rank}: {text}"
    assert len({text for _, text in said}) == 1, "every rank hears the same"


def of_another_version() -> list[str]:
    import os

    import torch

    import hvd_kernel
    import hvd_kernel.torch as hvd

    version = hvd_kernel.__version__
    if os.environ["HOROVOD_RANK"] == str(STRANGE):
        hvd_kernel.__version__ = "9.8.7"
    try:
        hvd.init()
    except ValueError as error:
        said = [type(error).__name__, str(error), version]
    else:
        said = ["", "came in", version]
    assert not hvd.is_initialized()
    hvd_kernel.__version__ = version
    hvd.init()
    assert hvd.allreduce(torch.ones(1), name="after", op=hvd.Sum).item() == hvd.size()
    hvd.shutdown()
    return said


def test_c8_a_package_version_that_differs(three: RankPool) -> None:
    for kind, text, version in three.run(of_another_version):
        assert kind == "ConfigError", text
        assert f": {version} on ranks 0,2, 9.8.7 on rank {STRANGE};" in text
