"""The dashboard without a browser: made lazily, fed by many threads, exact at the end."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from hvd_kernel.protocol.messages import MetricsSample
from hvd_kernel.widgets import dashboard as module
from hvd_kernel.widgets.dashboard import Dashboard

VIEW = "application/vnd.jupyter.widget-view+json"


def test_importing_widgets_imports_no_ipywidgets() -> None:
    code = (
        "import sys, hvd_kernel.widgets; print([m for m in ('anywidget', 'ipywidgets', 'torch') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True, timeout=240)
    assert done.stdout.strip() == "[]"


def test_displaying_makes_one_model_and_keeps_the_picture() -> None:
    board = Dashboard(range(3), "t")
    (data, metadata), (again, _) = board._repr_mimebundle_(), board._repr_mimebundle_()
    assert {VIEW, "image/svg+xml", "text/plain"} <= set(data)
    assert data[VIEW]["model_id"] == again[VIEW]["model_id"]
    assert data["text/plain"] == "hvd dashboard: 3 ranks"
    assert metadata["hvd"]["ranks"] == [0, 1, 2]


def test_the_state_a_late_view_gets_is_the_present_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: 50.0))
    board = Dashboard([0], "t")
    board._repr_mimebundle_()
    board.feed(MetricsSample(0, 1.0, "compute", step=41))
    board.feed_text(0, "stdout", "hello\n")
    assert board._panel is not None
    state = board._panel.get_state("snapshot")["snapshot"]
    assert state["rows"]["0"][2] == 41
    assert state["log"] == [[0, "stdout", "hello"]]
    board._panel.set_state({"snapshot": {"rows": "forged by a page"}})
    assert board._panel.get_state("snapshot")["snapshot"] == state


def test_page_may_request_only_a_number_of_ranks() -> None:
    board = Dashboard([0], "t")
    board._repr_mimebundle_()
    asked: list[int] = []
    board.on_resize = asked.append
    assert board._panel is not None
    for content in (
        {"resize": 6},
        {"resize": 0},
        {"resize": True},
        {"resize": "7"},
        {"resize": 1 << 17},
        5,
        ["resize", 5],
    ):
        board._panel._answer(None, content, None)
    assert asked == [6]


def test_many_threads_feed_while_one_flushes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FLUSH_S", 0.0)
    board = Dashboard(range(8), "t")
    board._repr_mimebundle_()
    sent: list[dict[str, Any]] = []
    monkeypatch.setattr(board._panel, "send", lambda news: sent.append(json.loads(json.dumps(news))))

    def feed(rank: int) -> None:
        for i in range(500):
            board.feed(MetricsSample(rank, i / 5, "compute", step=i, samples=i * 10, logged={"loss": 1.0 / (i + 1)}))
            board.feed_text(rank, "stdout", f"{i}\n")

    threads = [threading.Thread(target=feed, args=(rank,)) for rank in range(8)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        board.flush()
    board.flush()
    board.finish({})
    assert [news["seq"] for news in sent] == list(range(1, len(sent) + 1))
    assert [news["totals"]["step"] for news in sent if "totals" in news][-1] == 499
    final = board._snapshot()
    assert final["lines"] == 4000
    assert [row[0] for row in final["rows"].values()] == ["done"] * 8
    assert [row[2] for row in final["rows"].values()] == [499] * 8
    assert board.summary()["samples_per_s"]["total"] == pytest.approx(400)


def test_flushes_are_at_most_ten_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [50.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    board = Dashboard([0], "t")
    board._repr_mimebundle_()
    sent: list[object] = []
    monkeypatch.setattr(board._panel, "send", sent.append)
    for _ in range(1000):
        board.flush()
        now[0] += 0.01
    assert 90 <= len(sent) <= 101
