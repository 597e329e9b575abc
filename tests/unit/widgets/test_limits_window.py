"""Figures of the last seconds, for the limit of a run: which samples count, and when sentences are sent."""

from __future__ import annotations

from hvd_kernel.diagnosis.limits_of_run import Bottleneck
from hvd_kernel.magics.display.panel_polls import sentence
from hvd_kernel.protocol.messages import MetricsSample
from hvd_kernel.widgets.board import Board
from hvd_kernel.widgets.series import SOONEST_S, LimitsWindow

NS = 10**9


def sample(rank: int, t: float, wait: float = 0.0, *, ran: float = 0.0, ops: int = 0) -> MetricsSample:
    return MetricsSample(
        rank, t, "compute", ops=ops, bytes=ops * 2**21, comm_ns=round(0.5 * t * NS), wait_ns=round(wait * NS),
        ran_ns=round(ran * NS),
    )  # fmt: skip


def fed(seconds: int, wait: float, window: LimitsWindow | None = None, begin: int = 0) -> LimitsWindow:
    """Ranks that stand still for a share of their time, twice a second."""
    window = window or LimitsWindow()
    for i in range(2 * begin, 2 * (begin + seconds) + 1):
        for rank in range(2):
            window.feed(sample(rank, i / 2, wait * i / 2, ran=i / 2 + 1, ops=i))
    return window


def verdict(window: LimitsWindow, *, over: bool) -> Bottleneck:
    return window.bottleneck(window.figures(range(2), over=over), {})


def test_limits_use_ten_seconds_live_and_all_at_the_end() -> None:
    window = LimitsWindow()
    for i in range(61):
        wait = 0.1 * i if i <= 40 else 4.0  # communication until second 40: 10 % of the time; nothing of it since
        for rank in range(2):
            window.feed(sample(rank, i, wait, ran=i + 1, ops=i))
    assert verdict(window, over=False).sentences[0].startswith("limited by its own computation: ")
    assert verdict(window, over=False).sentences[0].endswith(" 0 % of the time")
    assert verdict(window, over=True).sentences[0].endswith(" 7 % of the time")


def test_first_seconds_give_no_sentence() -> None:
    assert verdict(fed(2, 0.5), over=False).lines == []
    assert verdict(fed(2, 0.5), over=True).lines != []
    assert verdict(fed(int(SOONEST_S), 0.5), over=False).lines != []


def test_counting_restarts_after_a_reset() -> None:
    window = fed(10, 0.5)
    fed(2, 0.0, window)  # the counters begin at zero
    assert verdict(window, over=True).sentences[0].endswith("does not hide takes 0 % of the time")


def test_other_notebooks_on_the_host_follow_the_limits() -> None:
    board = Board(range(2), "cell 1", lambda: 0.0)
    board.increment()
    board.other_ranks = "4 ranks of other notebooks run on this host too: 6 ranks share 2 cores"
    assert board.increment()[0]["limits"] == [board.other_ranks]
    assert "limits" not in board.increment()[0]
    board.finish({})
    assert board.snapshot()["limits"] == [board.other_ranks]
    assert sentence(2, 2, 1) == "2 ranks of other notebooks run on this host too: 4 ranks share 1 core"
    assert sentence(1, 2, 4) == "1 rank of another notebook runs on this host too: 3 ranks share 4 cores"
    assert sentence(0, 2, 4) == ""


def test_sentences_travel_when_they_change() -> None:
    now = [0.0]
    board = Board(range(2), "cell 1", lambda: now[0])
    sent = []
    for i in range(50):
        now[0] = i * 0.2
        for rank in range(2):
            board.feed(sample(rank, now[0], 0.4 * now[0], ran=now[0] + 1, ops=i))
        news, _ = board.increment()
        sent += [news["limits"]] if "limits" in news else []
    assert len(sent) == 1
    assert (
        sent[0][0]
        == "limited by communication: 40 % of the time is not hidden by computation, another 10 % overlaps with it"
    )
    assert board.snapshot()["limits"] == sent[0]
    board.finish({})
    assert board.snapshot()["limits"][0] == sent[0][0]
