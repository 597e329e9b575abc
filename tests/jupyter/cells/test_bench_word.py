"""``%hvd bench`` in a kernel and ``hvd.bench()`` on its ranks: real measurements, kept where the panel finds them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hvdtest.kernel import Kernel

from hvd_kernel.processes import bandwidth
from hvd_kernel.processes.bandwidth import SIZES

pytestmark = [pytest.mark.jupyter, pytest.mark.mp, pytest.mark.nightly, pytest.mark.timeout(600)]


def test_magic_and_ranks_measure_and_store_bandwidth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with Kernel(tmp_path) as kernel:
        outcome = kernel.run("%hvd bench -np 2", timeout=300)
        lines = outcome.text().splitlines()
        assert lines[0] == "allreduce of float32, sum, 2 ranks, 3 rounds"
        rows = {line.split()[1] for line in lines[2:]}
        assert {"hvd_kernel", "torch", "memory"} <= rows
        assert not [line for line in lines if "!" in line]
        assert "<svg" in outcome.contents("display_data")[0]["data"]["image/svg+xml"]
        first = bandwidth.kept(2)
        assert first is not None
        assert len(first.seconds["hvd_kernel"]) == len(first.seconds["memory copy"]) == len(SIZES)
        told = kernel.run("%%hvdrun -np 2\nfound = hvd.bench()\nprint(found)\nfound.ranks, hvd.size()", timeout=300)
        assert "[0-1] allreduce of float32, sum, 2 ranks, 3 rounds" in told.text()
        second = bandwidth.kept(2)
        assert second is not None
        assert second.time > first.time
        after = kernel.run("%%hvdrun\nimport torch\nfloat(hvd.allreduce(torch.ones(1), op=hvd.Sum, name='after'))")
        assert after.shown == ["[0-1] 2.0"]
