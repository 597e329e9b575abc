"""``hvd`` in cells where torch is installed: Horovod's API for torch, for which a rank's start does not wait."""

from __future__ import annotations

from pathlib import Path

import pytest
from hvdtest.cluster import execute
from hvdtest.where import INSIDE

from hvd_kernel.cluster import Session
from hvd_kernel.settings.gpus import count

BROKEN = Path(INSIDE).with_name("broken_torch")
pytestmark = [
    pytest.mark.jupyter,
    pytest.mark.mp,
    pytest.mark.skipif(count() != 0, reason="there is a GPU, and torch must say which"),
    pytest.mark.gpu,
]

FIRST = """
import hvd_kernel.torch, torch
summed = hvd.allreduce(torch.full((2,), rank + 1.0), op=hvd.Sum).tolist()
(hvd is hvd_kernel.torch, type(device) is torch.device, str(device), summed)
"""


@pytest.mark.cluster(2, env={"HVDTEST_FRESH": "torch"})
def test_first_cell_has_the_whole_api(session: Session) -> None:
    assert execute(session, FIRST).run.values() == dict.fromkeys(range(2), (True, True, "cpu", [3.0, 3.0]))


@pytest.mark.nightly
@pytest.mark.cluster(2, env={"HVDTEST_FRESH": "no mention"})
def test_code_reaches_the_api_through_other_names(session: Session) -> None:
    found = execute(session, "globals()['hv' + 'd'].size()").run.values()
    assert found == {0: 2, 1: 2}


@pytest.mark.cluster(1, env={"PYTHONPATH": str(BROKEN)})
def test_rank_is_ready_without_torch(session: Session) -> None:
    """A torch that cannot be imported fails the cells that use it, and no start: nothing has waited for it."""
    assert execute(
        session, "import hvd_kernel.numpy, numpy\nhvd_kernel.numpy.allreduce(numpy.ones(2)).tolist()"
    ).run.values() == {0: [1.0, 1.0]}
    for code in ("import torch", "hvd.size()"):
        failure = execute(session, code).failures[0]
        assert (failure.ename, failure.evalue) == ("ImportError", "this torch is broken"), code
    assert execute(session, "str(device)").run.values() == {0: "cpu"}
