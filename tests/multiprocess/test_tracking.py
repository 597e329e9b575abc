"""hvd.log over real ranks: exact means from rank 0 alone, a clear error where names differ, and no end for a full disk."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hvdtest.launch import RankPool

from hvd_kernel.formatting.rank_labels import rank_list

pytestmark = pytest.mark.mp

NAMES = "hvd.log: ranks log different names or steps. "
ALL = " Every rank has to log the same."


def tracked(folder: str) -> int:
    """Log from every rank; return the number of warnings."""
    import os
    import warnings

    import numpy as np
    import torch

    import hvd_kernel.torch as hvd
    from hvd_kernel import tracking

    rank, size = hvd.rank(), hvd.size()
    os.chdir(folder)
    tracking.choose("tensorboard:/proc/none,jsonl:a.jsonl,polyaxon:plx", "3f2a91c0" + "0" * 24)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for step in range(3):
            hvd.log({"b/x": torch.tensor(float(rank))}, a=np.float64(0.1), step=torch.tensor(step))
        hvd.log(loss=rank, per_rank=True)
    if size > 1:
        if rank == 0:
            assert hvd.join() in range(1, size), "whoever came last"
        else:
            hvd.log(late=float(rank))  # ranks that have joined do not count
            hvd.join()
        hvd.log(done=1)
    outputs = hvd.outputs_path("m.pt")
    assert outputs == Path(folder, "plx/runs", "3f2a91c0" + "0" * 24, "outputs/m.pt")
    outputs.write_text("x") if rank == 0 else None
    hvd.log_model(outputs, "mine")
    tracking.reset()
    return len(seen)


def test_means_are_exact_and_rank_0_writes(ranks: RankPool, tmp_path: Path) -> None:
    begun = ranks.run(tracked, str(tmp_path))
    assert begun == [0] * ranks.np, "the sink that cannot begin has said so when it was chosen"
    lines = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    mean = sum(range(ranks.np)) / ranks.np
    each = {f"loss/rank_{rank}": float(rank) for rank in range(ranks.np)}
    assert [(line["step"], line["values"]) for line in lines if "values" in line][:4] == [
        *((step, {"a": 0.1, "b/x": mean}) for step in range(3)),
        (None, {"loss": mean, **each}),
    ]
    # What rank 0 has joined out of is not written: it is there to write only what it takes part in.
    assert [line["values"] for line in lines if "values" in line][4:] == ([{"done": 1.0}] if ranks.np > 1 else [])
    assert {line["run"] for line in lines} == {"3f2a91c0"}
    assert [each.name for each in (tmp_path / "plx/runs").iterdir()] == ["3f2a91c0" + "0" * 24], "one run, not n"
    assert [line["artifact"]["name"] for line in lines if "artifact" in line] == ["mine"]


def other_names(folder: str) -> list[str]:
    import os

    import pytest

    import hvd_kernel.torch as hvd
    from hvd_kernel import tracking
    from hvd_kernel.errors import Mismatch

    os.chdir(folder)
    tracking.choose("jsonl:a.jsonl")
    first = hvd.rank() == 0
    calls = [
        lambda: hvd.log(**({"a": 1, "b": 2} if first else {"a": 1})),  # the tables have different shapes
        lambda: hvd.log(**({"a": 1} if first else {"b": 1})),  # the same shape
        lambda: hvd.log(a=1, step=3 if first else 4),
    ]
    said = []
    for call in calls if hvd.size() > 1 else ():
        with pytest.raises(Mismatch) as error:
            call()
        said.append(str(error.value))
    hvd.log(a=1, step=9)  # and the engine works on
    tracking.reset()
    return said


def test_differing_names_are_an_error_on_every_rank(ranks: RankPool, tmp_path: Path) -> None:
    others = rank_list(range(1, ranks.np))
    expected = [
        f"{NAMES}rank 0: a, b; {others}: a.{ALL}",
        f"{NAMES}rank 0: a; {others}: b.{ALL}",
        f"{NAMES}rank 0: a at step 3; {others}: a at step 4.{ALL}",
    ]
    assert ranks.run(other_names, str(tmp_path)) == [expected if ranks.np > 1 else []] * ranks.np
    last = json.loads((tmp_path / "a.jsonl").read_text().splitlines()[-2])
    assert (last["step"], last["values"]) == (9, {"a": 1.0})


def unpinned(folder: str) -> str:
    import os

    import hvd_kernel.torch as hvd
    from hvd_kernel import tracking

    os.chdir(folder)
    tracking.reset()
    os.environ.pop("HVD_TRACK_RUN", None)
    hvd.shutdown()
    hvd.init()
    found = str(hvd.outputs_path())
    tracking.reset()
    return found


def test_ranks_without_settings_agree_on_the_outputs(ranks: RankPool, tmp_path: Path) -> None:
    (found,) = set(ranks.run(unpinned, str(tmp_path)))
    assert [str(each) for each in (tmp_path / "outputs").iterdir()] == [found]
