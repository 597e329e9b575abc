"""The tail of the ranks' output: whole lines, bounded, without terminal codes."""

from __future__ import annotations

import pytest

from hvd_kernel.widgets.board import MAX_LINES, MAX_WIDTH, LogLine, LogTail, clean


def test_deltas_become_lines_per_rank_and_stream() -> None:
    log = LogTail()
    log.feed(0, "stdout", "a")
    log.feed(1, "stdout", "x\ny")
    log.feed(0, "stderr", "warn\n")
    log.feed(0, "stdout", "b\nc")
    assert list(log.lines) == [LogLine(1, "stdout", "x"), LogLine(0, "stderr", "warn"), LogLine(0, "stdout", "ab")]
    assert sorted(log.open_lines()) == [LogLine(0, "stdout", "c"), LogLine(1, "stdout", "y")]
    log.feed(0, "stdout", "\n")
    assert log.open_lines() == [LogLine(1, "stdout", "y")]
    assert log.since(3) == [LogLine(0, "stdout", "c")]
    assert log.since(log.count) == []


def test_a_progress_bar_is_one_open_line() -> None:
    log = LogTail()
    for i in range(1000):
        log.feed(0, "stderr", f"\r{i / 10:.0f}%")
    assert log.open_lines() == [LogLine(0, "stderr", "100%")]
    assert log.count == 0


def test_a_flood_costs_a_tail() -> None:
    log = LogTail()
    log.feed(3, "stdout", "".join(f"line {i}\n" for i in range(200_000)))
    log.feed(3, "stdout", "z" * 10_000_000)
    assert log.count == 200_000
    assert [line.text for line in log.lines] == [f"line {i}" for i in range(200_000 - MAX_LINES, 200_000)]
    assert log.since(0) == list(log.lines)
    assert len(log.open_lines()[0].text) == MAX_WIDTH


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]8;;http://evil.example\x07link\x1b]8;;\x07", "link"),
        ("\x1b]0;title\x1b\\text", "text"),
        ("\x1b]never ended", ""),
        ("\x1bPdcs\x1b\\after", "after"),
        ("10%\r20%\r", "20%"),
        ("a\tb", "a   b"),
        ("\x00\x07bell\x7f", "bell"),
        ("\u202egnp.exe", "gnp.exe"),
        ("<b>&amp;</b>", "<b>&amp;</b>"),
        ("x" * (MAX_WIDTH + 1), "x" * (MAX_WIDTH - 1) + "…"),
    ],
)
def test_clean(raw: str, shown: str) -> None:
    assert clean(raw) == shown
