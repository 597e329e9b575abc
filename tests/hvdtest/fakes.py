"""Fakes for tests of rendering alone: a writer that remembers, a board that counts, a run that was written beforehand."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

from hvd_kernel.protocol.messages import Event, Failure, Frame, MetricsSample, RankDone, Whereabouts, to_content


class FakeWriter:
    """Records the written text in order."""

    def __init__(self, *, interactive: bool = False, terminal: bool = False) -> None:
        self.interactive = interactive
        self.terminal = terminal
        self.has_user = interactive or terminal
        self.written: list[tuple[str, Any]] = []

    def write(self, text: str, stream: str = "stdout") -> None:
        if text:
            self.written.append((stream, text))

    def show(self, data: dict[str, Any], metadata: dict[str, Any] | None = None) -> None:
        self.written.append(("display", data))

    def live(self, thing: Any) -> FakeHandle:
        self.written.append(("live", thing))
        return FakeHandle(self)


class FakeHandle:
    def __init__(self, writer: FakeWriter) -> None:
        self._writer = writer

    def update(self, thing: Any) -> None:
        self._writer.written.append(("update", thing))


class FakeBoard:
    """Counts the updates of a Dashboard."""

    def __init__(self) -> None:
        self.samples: list[MetricsSample] = []
        self.text: list[tuple[int, str, str]] = []
        self.flushes = 0
        self.states: dict[int, str] = {}
        self.explained: list[str] = []
        self.marks: list[tuple[str, str]] = []

    def mark(self, kind: str, label: str) -> None:
        self.marks.append((kind, label))

    def feed(self, sample: MetricsSample) -> None:
        self.samples.append(sample)

    def feed_text(self, rank: int, stream: str, text: str) -> None:
        self.text.append((rank, stream, text))

    def explain(self, sentence: str) -> None:
        self.explained.append(sentence)

    def flush(self) -> None:
        self.flushes += 1

    def finish(self, states: dict[int, str]) -> None:
        self.states = dict(states)

    def static_bundle(self) -> tuple[dict[str, Any], dict[str, Any]]:
        return {"text/plain": "hvd dashboard"}, {"hvd": {}}

    def summary(self) -> dict[str, Any]:
        return {
            "samples_per_s": {"total": 1234.5},
            "ranks": [0, 1],
            "steps": 7,
            "seconds": 2.0,
            "slow": {},
            "marks": [],
            "logged": {"loss": 0.5},
        }


class ScriptedExecution:
    """Returns events from a list. ``None``: no event at this moment; a function is called, then the next event follows."""

    def __init__(self, script: Iterable[Any], ranks: Iterable[int]) -> None:
        self._script = list(script)
        self._open = set(ranks)
        self.failures: list[Failure] = []
        self.holding: set[int] = set()

    replaces = False
    waiting: ClassVar[dict[int, Any]] = {}
    lost: ClassVar[dict[int, Any]] = {}

    @property
    def busy(self) -> set[int]:
        return set(self._open)

    @property
    def done(self) -> bool:
        return not self._open

    def next(self, _timeout: float) -> Event | None:
        item = self._script.pop(0) if self._script else None
        if callable(item):
            item()
            return None
        if isinstance(item, RankDone):
            self._open.discard(item.rank)
        return item


class FakeAnswers:
    """Answers that all arrive at once."""

    def __init__(self, answers: dict[int, dict[str, Any]]) -> None:
        self._answers = answers

    def so_far(self) -> dict[int, dict[str, Any]]:
        return self._answers

    def wait_all(self, _seconds: float) -> dict[int, dict[str, Any]]:
        return self._answers


class FakeSession:
    """Records interrupted ranks; its ranks report that they sleep."""

    n = 2
    dead = ()
    folder = Path()

    def __init__(self) -> None:
        self.interrupted: list[list[int]] = []

    def status(self) -> list[Any]:
        return []

    def post(self, _verb: str, ranks: list[int], **_how: Any) -> FakeAnswers:
        sleep = Frame("cell 1:2", "", "sleep(60)", is_user_code=True)
        return FakeAnswers({rank: to_content(Whereabouts(rank, "compute", frames=(sleep,))) for rank in ranks})

    def interrupt(self, ranks: list[int]) -> None:
        self.interrupted.append(list(ranks))
