"""``torch.compile`` on ranks that all call it at once: one of them compiles, the others read its result."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from hvdtest.cluster import drain, execute

from hvd_kernel.cluster import Session

pytestmark = [
    pytest.mark.jupyter,
    pytest.mark.mp,
    pytest.mark.nightly,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(shutil.which("g++") is None, reason="inductor has no compiler here"),
]

COMPILER_S = 600.0
"""For a C++ compiler that others keep from the cores."""

COMPILED = """
import json, os
os.environ["TORCHINDUCTOR_CACHE_DIR"] = {cache!r}
import torch
import hvd_kernel.torch.compile_once
hvd_kernel.torch.compile_once.WAIT_S = 1e9  # a busy machine's compiler takes minutes
from torch._dynamo.utils import counters
counters.clear()
wave = torch.compile(lambda x: (x.sin() * 2 + x.cos()).{end})
hvd.barrier()
made = wave(torch.ones(8))
json.dumps([counters["inductor"]["fxgraph_cache_miss"], counters["inductor"]["fxgraph_cache_hit"], made.sum().item()])
"""


def counted(session: Session, cache: Path, end: str) -> list[list[float]]:
    """Of each rank: graphs that it has compiled, graphs that it has read, the sum of the result."""
    run = session.run(COMPILED.format(cache=str(cache), end=end))
    found = drain(run, COMPILER_S).run.values()
    return [json.loads(found[rank]) for rank in range(4)]


@pytest.mark.cluster(4)
def test_one_rank_compiles_and_the_others_read(session: Session, tmp_path: Path) -> None:
    found = counted(session, tmp_path, "exp()")
    assert sorted(compiled for compiled, _, _ in found) == [0, 0, 0, 1]
    assert sorted(read for _, read, _ in found) == [0, 1, 1, 1]
    assert len({total for _, _, total in found}) == 1


@pytest.mark.cluster(4)
def test_compiled_code_is_read_by_all_ranks(session: Session, tmp_path: Path) -> None:
    counted(session, tmp_path, "abs()")
    execute(session, "torch._dynamo.reset()")
    assert [each[:2] for each in counted(session, tmp_path, "abs()")] == [[0, 1]] * 4
