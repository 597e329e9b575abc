"""Elastic training in a cell: a rank that dies in ``elastic.run`` is replaced, and the cell continues."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hvdtest.kernel import Kernel

pytestmark = [pytest.mark.jupyter, pytest.mark.mp]
TRAIN = """%%hvdrun
import os, pathlib, signal, torch
once = pathlib.Path({once!r})
state = hvd.elastic.ObjectState(step=0, total=0.0)
@hvd.elastic.run
def train(state):
    while state.step < 8:
        if state.step == 5 and hvd.rank() == {victim} and not once.exists():
            once.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        state.total += hvd.allreduce(torch.ones(1), op=hvd.Sum, name="one").item()
        state.step += 1
        if state.step % {every} == 0:
            state.commit()
    return state.step, state.total, hvd.size()
train(state), 'born' in globals()"""


@pytest.mark.cluster(2, env={"HVD_RESPAWN": "auto"})
def test_s30_cell_continues_after_a_death_in_it(kernel: Kernel, tmp_path: Path) -> None:
    kernel.run("%%hvdrun\nimport torch, hvd_kernel\nborn = hvd.rank()")
    cell = TRAIN.format(once=str(tmp_path / "once"), victim=1, every=2)
    outcome = kernel.run(cell, timeout=120)
    assert outcome.shown == ["[0] ((8, 16.0, 2), True)\n[1] ((8, 16.0, 2), False)"]
    assert (tmp_path / "once").exists(), "the rank has been killed"
    assert kernel.run("%%hvdrun\nhvd.size(), hvd.allreduce(torch.ones(1), op=hvd.Sum).item()").shown == [
        "[0-1] (2, 2.0)"
    ]


@pytest.fixture
def elastic_kernel(tmp_path: Path) -> Iterator[Kernel]:
    """A kernel of its own, for three ranks of which any may die."""
    with Kernel(tmp_path, env={"HVD_SPARES": "0", "HVD_RESPAWN": "auto"}) as own:
        own.run("%hvd start -np 3", timeout=120)
        yield own


@pytest.mark.nightly
def test_newest_values_survive_any_death_shown_in_the_panel(elastic_kernel: Kernel, tmp_path: Path) -> None:
    """This holds for rank 0, whose replacement has no values: two commits were made, so at most one step is undone."""
    cell = TRAIN.format(once=str(tmp_path / "once"), victim=0, every=2)
    outcome = elastic_kernel.run(
        cell.replace("        state.step += 1", "        state.step += 1\n        hvd.log(at=state.step)")
    )
    assert outcome.shown[-1] == "[0-2] ((8, 24.0, 3), False)"
    [digest] = [each["metadata"]["hvd"] for each in outcome.contents("display_data") if "hvd" in each["metadata"]]
    assert [label for _, _, label in digest["marks"]] == ["rank 0 died", "rank 0 joined, generation 1"]


@pytest.mark.nightly
def test_two_simultaneous_deaths_are_replaced_with_kept_values(elastic_kernel: Kernel, tmp_path: Path) -> None:
    elastic_kernel.run("%%hvdrun\nimport hvd_kernel\nborn = 'kept'\nhvd_kernel.keep('born')")
    cell = TRAIN.format(once=str(tmp_path / "once"), victim="-1", every=1)
    both = "if state.step == 5 and hvd.rank() and not pathlib.Path(f'{once}{hvd.rank()}').exists():"
    cell = cell.replace("if state.step == 5 and hvd.rank() == -1 and not once.exists():", both)
    cell = cell.replace("once.touch()", "pathlib.Path(f'{once}{hvd.rank()}').touch()")
    assert elastic_kernel.run(cell, timeout=120).shown == ["[0-2] ((8, 24.0, 3), True)"]


@pytest.mark.nightly
def test_new_rank_failing_before_elastic_run_fails_the_cell(elastic_kernel: Kernel, tmp_path: Path) -> None:
    elastic_kernel.run("%%hvdrun\nhelper = 1")
    cell = TRAIN.format(once=str(tmp_path / "once"), victim=2, every=1).replace("\nonce =", "\nhelper\nonce =", 1)
    failed = elastic_kernel.run(cell, allow_error=True, timeout=120)
    assert failed.reply["ename"] == "NameError"
    assert "name 'helper' is not defined" in failed.error
    assert elastic_kernel.run("%%hvdrun\nhvd.size(), hvd.rank() == rank").shown == ["[0-2] (3, True)"]


@pytest.mark.nightly
def test_collective_of_a_new_rank_before_elastic_run_is_named(elastic_kernel: Kernel, tmp_path: Path) -> None:
    cell = TRAIN.format(once=str(tmp_path / "once"), victim=2, every=1)
    cell = cell.replace("\nonce =", "\nhvd.allreduce(torch.ones(1), name='early')\nonce =", 1)
    failed = elastic_kernel.run(cell, allow_error=True, timeout=120)
    assert "on rank 2" in failed.error.splitlines()[0]
    assert "early" in failed.error


@pytest.mark.nightly
def test_non_elastic_cell_fails_after_a_death(elastic_kernel: Kernel) -> None:
    failed = elastic_kernel.run(
        "%%hvdrun\nimport os, signal, torch\nif rank == 1: os.kill(os.getpid(), signal.SIGKILL)\nhvd.allreduce(torch.ones(1))",
        allow_error=True,
    )
    assert failed.reply["ename"] == "RankDied"
    assert "RankDied on rank 1" in failed.error
    assert elastic_kernel.run("%%hvdrun\nhvd.size()", timeout=120).shown == ["[0-2] 3"]


@pytest.mark.nightly
def test_error_of_one_rank_is_recovered_as_in_a_script(elastic_kernel: Kernel, tmp_path: Path) -> None:
    cell = TRAIN.format(once=str(tmp_path / "once"), victim=1, every=1)
    cell = cell.replace("os.kill(os.getpid(), signal.SIGKILL)", "raise hvd.elastic.HorovodInternalError('once')")
    assert elastic_kernel.run(cell, timeout=120).shown == ["[0-2] ((8, 24.0, 3), False)"]


@pytest.mark.nightly
def test_death_during_a_replacement_is_replaced(elastic_kernel: Kernel, tmp_path: Path) -> None:
    """The new process kills itself once, when it reaches elastic.run."""
    cell = TRAIN.format(once=str(tmp_path / "once"), victim=1, every=1)
    again = "if once.exists() and not (two := once.with_name('two')).exists() and 'born' not in globals():"
    kill = f"\n{again}\n    two.touch(); os.kill(os.getpid(), signal.SIGKILL)\nstate ="
    elastic_kernel.run("%%hvdrun\nborn = 1")
    outcome = elastic_kernel.run(cell.replace("\nstate =", kill, 1), timeout=120)
    assert outcome.shown == ["[0,2] ((8, 24.0, 3), True)\n[1] ((8, 24.0, 3), False)"]
    assert (tmp_path / "two").exists()
