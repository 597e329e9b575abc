"""Real ranks, one of which is slow or waits for a user: their telemetry, and the reports made of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hvdtest.cluster import drain

from hvd_kernel.cluster import CellExecution, Session
from hvd_kernel.diagnosis.inquiry import locate
from hvd_kernel.diagnosis.stall import sentence
from hvd_kernel.protocol.messages import Event, MetricsSample, Prompt
from hvd_kernel.widgets.board import Board

pytestmark = [pytest.mark.jupyter, pytest.mark.mp, pytest.mark.timeout(240), pytest.mark.cluster(3)]

RANKS = 3

PATIENCE_S = 120.0


def events_until(run: CellExecution, happened: Callable[[Event], bool]) -> None:
    """Take events up to the one at which it has happened."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        event = run.next(0.2)
        if event is not None and happened(event):
            return
        assert not run.done, [failure.evalue for failure in run.failures]
        assert time.monotonic() < deadline, "it has not happened"


def test_a13_rank_with_five_times_the_work_gets_a_badge(session: Session, tmp_path: Path) -> None:
    enough = tmp_path / "enough"
    cell = f"""import os, time, torch
while True:
    time.sleep(0.25 if rank == 1 else 0.05)
    if hvd.allreduce(torch.tensor([float(os.path.exists({str(enough)!r}))]), name="work", op=hvd.Max): break
rank"""
    board = Board(range(RANKS), "t", time.monotonic)
    run = session.run(cell)

    def badged(event: Event) -> bool:
        if isinstance(event, MetricsSample):
            board.feed(event)
        return list(board.slow) == ["1"]  # another one may be slow as well for a moment, on a busy machine

    events_until(run, badged)
    enough.touch()
    outcome = drain(run, PATIENCE_S)
    times, share = board.slow["1"]
    assert times is not None
    assert share is not None
    assert times > 1.2
    assert 0.1 < share < 1.0
    assert not outcome.failures
    assert outcome.results() == {0: "0", 1: "1", 2: "2"}


def test_rank_at_a_prompt_reports_it_and_the_others_wait(session: Session) -> None:
    run = session.run("hvd.barrier()\nsaid = input('? ') if rank == 2 else 'nothing'\nhvd.barrier()\nsaid")
    prompts: list[Prompt] = []
    states: dict[int, str] = {}

    def parked(event: Event) -> bool:
        if isinstance(event, Prompt):
            prompts.append(event)
        elif isinstance(event, MetricsSample):
            states[event.rank] = event.state
        return states == {0: "collective", 1: "collective", 2: "prompt"}

    events_until(run, parked)
    said = ""
    deadline = time.monotonic() + PATIENCE_S
    while not said:  # ranks explain nothing that has waited for less than a moment
        found = locate(session, range(RANKS), PATIENCE_S)
        assert found[2].state == "prompt"
        said = sentence(found, range(RANKS))
        assert time.monotonic() < deadline
    assert said.startswith("barrier waits for rank 2, which is at a prompt in ")
    session.ask("typed", [2], {"number": prompts[0].number, "text": "seven"}, urgent=True)
    assert drain(run, PATIENCE_S).results() == {0: "'nothing'", 1: "'nothing'", 2: "'seven'"}
