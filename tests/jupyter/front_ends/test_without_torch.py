"""``hvd`` in cells where torch is not installed: Horovod's API on NumPy's arrays."""

from __future__ import annotations

from pathlib import Path

import pytest
from hvdtest.cluster import execute
from hvdtest.where import INSIDE

from hvd_kernel.cluster import Session
from hvd_kernel.formatting.install_command import install_command

HIDDEN = Path(INSIDE).with_name("without_torch")
pytestmark = [pytest.mark.jupyter, pytest.mark.mp, pytest.mark.cluster(3, env={"PYTHONPATH": str(HIDDEN)})]

COLLECTIVES = """
import numpy as np
import hvd_kernel.numpy
summed = hvd.allreduce(np.arange(5) * (rank + 1), op=hvd.Sum)
mean = hvd.allreduce(np.full(2, rank, np.float32), name="mean")
rows = hvd.allgather(np.full((rank + 1, 2), rank))
told = hvd.broadcast_object({"lr": 0.1} if rank == 2 else None, root_rank=2)
(hvd is hvd_kernel.numpy, (rank, size, local_rank, device), summed.tolist(), mean.tolist(), rows.tolist(), told)
"""


def test_hvd_is_the_api_for_numpys_arrays(session: Session) -> None:
    rows = [[each, each] for each in range(3) for _ in range(each + 1)]
    assert execute(session, COLLECTIVES).run.values() == {
        rank: (True, (rank, 3, rank, "cpu"), [0, 6, 12, 18, 24], [1.0, 1.0], rows, {"lr": 0.1}) for rank in range(3)
    }


def test_numpy_api_can_be_imported_by_name(session: Session) -> None:
    code = "import hvd_kernel.numpy as mine, numpy\nmine.allreduce(numpy.array([2**rank]), op=mine.Sum).item()"
    assert execute(session, code).run.values() == {0: 7, 1: 7, 2: 7}


def test_import_of_torch_api_reports_that_torch_is_missing(session: Session) -> None:
    told = execute(session, "import hvd_kernel.torch").failures
    assert {rank: (failure.ename, failure.evalue) for rank, failure in told.items()} == dict.fromkeys(
        range(3),
        (
            "ModuleNotFoundError",
            f"hvd_kernel.torch needs torch, which is not installed in this Python: {install_command('torch')}",
        ),
    )
    failures = execute(session, "import torch").failures
    assert {rank: failure.ename for rank, failure in failures.items()} == dict.fromkeys(range(3), "ModuleNotFoundError")
    assert execute(session, "hvd.size()").run.values() == dict.fromkeys(range(3), 3), "and the ranks work on"
