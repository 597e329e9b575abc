"""Explanations of waiting ranks from their reports: which ranks are queried, when, and the text. No ranks, a fake clock."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hvdtest.fakes import FakeSession

from hvd_kernel.diagnosis import stall
from hvd_kernel.diagnosis.stall import Activity, operation, report, sentence, whereabouts
from hvd_kernel.formatting.operation_names import OTHER_BACKEND
from hvd_kernel.protocol.messages import Frame, MetricsSample, Pending, Whereabouts, from_content, to_content

LOAD = Frame("data.py:41", "load", "time.sleep(60)", is_user_code=True)
CELL = Frame("cell 3:7", "", "train()", is_user_code=True)
TORCH = Frame("torch/utils/data/dataloader.py:1284", "_try_get_data", "data = self._queue.get()", is_user_code=False)


def in_collective(rank: int, ops: int = 5, name: str = "allreduce.g") -> MetricsSample:
    return MetricsSample(rank, 0.0, "collective", name, ops=ops)


def computing(rank: int) -> MetricsSample:
    return MetricsSample(rank, 0.0, "compute")


def waiting(rank: int, name: str = "allreduce.g", missing: tuple[int, ...] = ()) -> Whereabouts:
    return Whereabouts(rank, "collective", name, (CELL,), (Pending(name, 1.5, missing),))


def test_a_rank_that_stays_in_one_operation_waits() -> None:
    activity = Activity([0, 1], 0.0)
    for at in (0.1, 0.3, 0.5, 0.7):
        activity.observe(in_collective(0), at)
        activity.observe(computing(1), at)
    assert not activity.some_wait(0.69)
    assert activity.some_wait(0.7)


def test_a13_loop_of_operations_with_one_name_is_not_a_wait() -> None:
    """A training loop is in "its" allreduce at every sample, but each time in another one."""
    activity = Activity([0], 0.0)
    for i in range(50):
        activity.observe(in_collective(0, ops=i), 0.2 * i)
        assert not activity.some_wait(0.2 * i + 0.1)


def test_a_wait_ends_with_the_operation_and_with_the_cell() -> None:
    activity = Activity([0, 1], 0.0)
    for rank in (0, 1):
        activity.observe(in_collective(rank), 0.0)
    assert activity.some_wait(1.0)
    activity.observe(computing(0), 1.0)
    assert activity.some_wait(1.0)
    activity.observe(MetricsSample(1, 0.0, "idle"), 1.0)
    assert not activity.some_wait(9.0)


def test_a12_unresponsive_rank_is_silent_but_not_a_finished_one() -> None:
    activity = Activity([0, 1, 2], 0.0)
    activity.observe(MetricsSample(1, 0.0, "idle"), 0.5)
    activity.observe(computing(2), 0.5)
    assert activity.silent(0.6) == set()
    assert activity.silent(0.8) == {0}
    assert activity.silent(1.3) == {0, 2}


class RankOneIsMute:
    """An inquiry that rank 0 has answered, and rank 1 has not; records which ranks are inspected from outside."""

    def __init__(self) -> None:
        self.inspected: list[set[int]] = []

    def silent(self) -> set[int]:
        return {1}

    def answers(self) -> dict[int, Whereabouts]:
        return {0: waiting(0, missing=(1,))}

    def from_outside(self, ranks: set[int]) -> dict[int, Whereabouts]:
        if ranks:
            self.inspected.append(ranks)
        return {rank: Whereabouts(rank, "silent") for rank in ranks}


def test_a12_rank_with_unread_messages_is_not_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A notebook that was stopped reads all samples late, and an inspection from outside may end a rank's sleep."""
    now, inquiry = [100.0], RankOneIsMute()
    monkeypatch.setattr(stall, "Inquiry", lambda *_: inquiry)
    monkeypatch.setattr(stall, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monitor = stall.StallMonitor(FakeSession(), [0, 1])
    for sample in (in_collective(0), computing(1)):
        monitor.observe(sample)
    monitor.tick()
    now[0] += 5
    monitor.observe(in_collective(0))
    for _ in range(3):
        monitor.tick()
    assert inquiry.inspected == []
    for _ in range(8):
        now[0] += 0.1
        monitor.observe(in_collective(0))
        monitor.tick()
    assert inquiry.inspected == [{1}], "it has sent nothing since either"


@pytest.mark.parametrize("samples", [False, True])
def test_a12_mute_rank_is_inspected_although_every_tick_is_late(samples: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine the silence was measured from zero at every tick, and the stall was never explained."""
    now, inquiry = [100.0], RankOneIsMute()
    monkeypatch.setattr(stall, "Inquiry", lambda *_: inquiry)
    monkeypatch.setattr(stall, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monitor = stall.StallMonitor(FakeSession(), [0, 1])
    for _ in range(8):
        now[0] += stall.LATE_S
        monitor.observe(in_collective(0))
        if samples:
            monitor.observe(computing(1))
        monitor.tick()
    assert inquiry.inspected == ([] if samples else [{1}])
    assert bool(monitor.sentence) == (not samples)


@pytest.mark.parametrize(
    ("ended", "expected"), [(False, ""), (True, "allreduce 'g' waits for rank 1, which has ended the cell")]
)
def test_a_rank_has_ended_the_cell_only_with_its_last_sample(
    ended: bool, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank that was queried before it began the cell was reported as having ended it."""
    now = [100.0]
    known = {0: waiting(0, missing=(1,)), 1: Whereabouts(1, "idle")}
    inquiry = SimpleNamespace(silent=set, answers=lambda: known, from_outside=lambda _ranks: {})
    monkeypatch.setattr(stall, "Inquiry", lambda *_: inquiry)
    monkeypatch.setattr(stall, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monitor = stall.StallMonitor(FakeSession(), [0, 1])
    if ended:
        monitor.observe(MetricsSample(1, 0.0, "idle"))
    for _ in range(10):
        now[0] += 0.1
        monitor.observe(in_collective(0))
        monitor.tick()
    assert monitor.sentence == expected


def test_c5_tensor_rank_and_line() -> None:
    found = {rank: waiting(rank, "allreduce.grad/conv1", (3,) if rank == 0 else ()) for rank in range(3)}
    found[3] = Whereabouts(3, "compute", frames=(CELL, LOAD))
    expected = "allreduce 'grad/conv1' waits for rank 3, which is in data.py:41 load(): time.sleep(60)"
    assert sentence(found, range(4)) == expected


def test_the_line_is_the_users_own_rather_than_a_librarys() -> None:
    found = {0: waiting(0, missing=(1,)), 1: Whereabouts(1, "compute", frames=(CELL, LOAD, TORCH))}
    assert sentence(found, range(2)).endswith("which is in data.py:41 load(): time.sleep(60)")
    found[1] = Whereabouts(1, "compute", frames=(TORCH,))
    assert "dataloader.py:1284 _try_get_data()" in sentence(found, range(2))


@pytest.mark.parametrize(
    ("place", "said"),
    [
        (Whereabouts(1, "idle"), "which has ended the cell"),
        (Whereabouts(1, "traceback"), "which is formatting the traceback of an error"),
        (Whereabouts(1, "stopped"), "which is stopped (SIGSTOP or a debugger)"),
        (Whereabouts(1, "dead"), "which is dead"),
        (Whereabouts(1, "compute"), "which is busy outside Python"),
        (Whereabouts(1, "silent", frames=(LOAD,)), "which is in C code, called in data.py:41 load(): time.sleep(60)"),
        (waiting(1, "broadcast.b{0}"), "which waits in broadcast 'b{0}' at cell 3:7: train()"),
    ],
)
def test_where_the_missing_rank_is(place: Whereabouts, said: str) -> None:
    assert sentence({0: waiting(0, missing=(1,)), 1: place}, range(2)) == f"allreduce 'g' waits for rank 1, {said}"


def test_missing_ranks_are_grouped_by_place() -> None:
    here = Whereabouts(0, "compute", frames=(LOAD,))
    found = {0: waiting(0, missing=(1, 2, 3)), 1: here, 2: here, 3: Whereabouts(3, "idle")}
    where = "ranks 1-2, which are in data.py:41 load(): time.sleep(60)"
    assert sentence(found, range(4)) == f"allreduce 'g' waits for {where} and for rank 3, which has ended the cell"
    assert sentence(found, range(3)).endswith("and for rank 3, which the cell does not run on")


def test_a10_stopped_rank_is_diagnosed_by_the_others() -> None:
    found = {0: Whereabouts(0, "stopped"), 1: waiting(1), 2: waiting(2)}
    assert sentence(found, range(3)) == "allreduce 'g' waits for rank 0, which is stopped (SIGSTOP or a debugger)"


@pytest.mark.parametrize(
    "found",
    [
        {},
        {0: waiting(0), 1: waiting(1)},  # all are there: it is merely large
        {0: Whereabouts(0, "collective", "allreduce.g", (), (Pending("allreduce.g", 0.2, (1,)),)), 1: waiting(1)},
        {0: Whereabouts(0, "compute"), 1: Whereabouts(1, "compute")},
    ],
)
def test_ranks_without_a_missing_peer_are_not_explained(found: dict[int, Whereabouts]) -> None:
    assert sentence(found, range(2)) == ""


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("allreduce.grad/conv1", "allreduce 'grad/conv1'"),
        ("allreduce.layers.0.weight", "allreduce 'layers.0.weight'"),
        ("barrier.noname", "barrier"),
        ("allreduce.noname.12", "allreduce"),
        ("allgather." + "x" * 100, "allgather '" + "x" * 59 + "…'"),
    ],
)
def test_operations_have_their_common_names(name: str, said: str) -> None:
    assert operation(name) == said


def test_one_block_for_ranks_at_one_place() -> None:
    found = {rank: waiting(rank) for rank in (0, 1, 3)} | {2: Whereabouts(2, "compute", frames=(CELL, LOAD))}
    assert report(found) == (
        "[0-1,3] waiting in allreduce 'g'\n    cell 3:7: train()\n"
        "[2] in the cell's own code\n    cell 3:7: train()\n    data.py:41 load(): time.sleep(60)\n"
    )
    assert whereabouts({2: found[2]}) == "rank 2 is in data.py:41 load(): time.sleep(60)"


def test_rank_at_a_prompt_is_reported_as_such() -> None:
    asks = Whereabouts(2, "prompt", frames=(CELL,))
    assert whereabouts({2: asks}) == "rank 2 is at a prompt in cell 3:7: train()"
    assert report({2: asks}) == "[2] at a prompt\n    cell 3:7: train()\n"
    found = {0: waiting(0, missing=(2,)), 1: waiting(1), 2: asks}
    said = "allreduce 'g' waits for rank 2, which is at a prompt in cell 3:7: train()"
    assert sentence(found, range(3)) == said


def test_whereabouts_are_sent_as_json() -> None:
    place = Whereabouts(2, "collective", "allreduce.g", (CELL, LOAD), (Pending("allreduce.g", 1.5, (1, 3)),))
    assert from_content(Whereabouts, json_round(to_content(place))) == place


def json_round(wire: dict[str, object]) -> dict[str, object]:
    import json

    back: dict[str, object] = json.loads(json.dumps(wire))
    return back


def on_gloo(rank: int, name: str, ranks: tuple[int, ...], state: str = "collective") -> Whereabouts:
    return Whereabouts(rank, state, f"{OTHER_BACKEND}{name}" if name else "", (CELL,), ranks=ranks)


def test_ranks_that_have_not_called_an_operation_of_gloo_are_named() -> None:
    everyone = (0, 1, 2)
    waits = {0: on_gloo(0, "all_reduce", everyone), 2: on_gloo(2, "all_reduce", everyone)}
    late = Whereabouts(1, "compute", "", (LOAD,))
    where = "which is in data.py:41 load(): time.sleep(60)"
    assert sentence(waits | {1: late}, everyone) == f"torch.distributed all_reduce waits for rank 1, {where}"
    assert sentence(waits | {1: on_gloo(1, "all_reduce", everyone)}, everyone) == ""
    other = sentence(waits | {1: on_gloo(1, "barrier", everyone)}, everyone)
    assert other == (
        "torch.distributed all_reduce waits for rank 1, which waits in torch.distributed barrier at cell 3:7: train()"
    )
    assert sentence({0: on_gloo(0, "all_reduce", (0, 2)), 1: late, 2: on_gloo(2, "all_reduce", (0, 2))}, everyone) == ""
    assert report(waits).startswith("[0,2] waiting in torch.distributed all_reduce\n")


def test_messages_of_gloo_wait_for_the_other_rank_alone() -> None:
    late = Whereabouts(1, "compute", "", (LOAD,))
    receives = on_gloo(0, "recv", (1,))
    assert sentence({0: receives, 1: late}, range(2)).startswith("torch.distributed recv waits for rank 1, which is in")
    assert sentence({0: receives, 1: on_gloo(1, "send", (0,))}, range(2)) == ""
    assert "which waits in torch.distributed send" in sentence({0: receives, 1: on_gloo(1, "send", (2,))}, range(2))
