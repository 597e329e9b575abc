"""The path of a rank's text: through the log's file, past the bounds, into the stored lines."""

from __future__ import annotations

import errno
import os
import random
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hvd_kernel.magics.display.cell_output import OutputBuffer
from hvd_kernel.magics.display.rank_text import Lines, TextLimits, clean
from hvd_kernel.protocol import rank_log
from hvd_kernel.protocol.messages import Cleared, RichOutput, TextDelta
from hvd_kernel.worker import output
from hvd_kernel.worker.output import Forward, Index, LogFile, Room, encoded


def stored(data: bytes, ends: list[int], room: Room, limits: TextLimits) -> list[str]:
    """Return what is stored of text that had grown to each of ``ends`` when it was read."""
    way = Forward(lambda begin, end: data[begin:end], 0, room)
    pieces = [piece for end in sorted(ends) for piece in way.pump(end)] + list(way.finish(len(data)))
    shown = OutputBuffer(limits)
    for piece in pieces:
        skipped = tuple(piece.get("skipped", (0, 0, 0)))
        shown.handle(TextDelta(0, "stdout", piece["text"], piece.get("live", False), skipped))
    return shown.lines("stdout")


lines_of_text = st.lists(st.text("abcdé ", max_size=12), max_size=150)


@given(lines_of_text, st.lists(st.floats(0, 1), max_size=8))
def test_flood_is_stored_the_same_for_any_polling(written: list[str], cuts: list[float]) -> None:
    data = "".join(f"{line}\n" for line in written).encode()
    room, limits = Room(head=400, tail=200), TextLimits(lines=8, chars=120)
    looked = stored(data, [int(cut * len(data)) for cut in cuts], room, limits)
    assert looked == stored(data, [], room, limits)
    marks = [line for line in looked if line.startswith("…")]
    left_out = int(marks[0].split()[1].replace(",", "")) if marks else 0
    assert len(looked) - len(marks) + left_out == len(written)
    if written and written[-1].strip():
        assert looked[-1] == written[-1]


def test_a_flood_counts_every_line() -> None:
    data = b"".join(b"%06d\n" % i for i in range(100_000))
    kept = stored(data, list(range(0, len(data), 7777)), Room(65536, 32768), TextLimits(lines=10, chars=1000))
    assert kept == [*(f"{i:06}" for i in range(5)), "… 99,990 lines more", *(f"{i:06}" for i in range(99_995, 100_000))]


def test_sent_part_of_a_flood_is_bounded() -> None:
    data = os.urandom(100_000).hex().encode() * 10
    room = Room(65536, 32768)
    way = Forward(lambda begin, end: data[begin:end], 0, room)
    sent = sum(len(p["text"]) for end in range(0, len(data), 10_000) for p in way.pump(end))
    sent += sum(len(p["text"]) for p in way.finish(len(data)))
    assert sent <= room.head + room.tail + 8 * 1024 * (len(data) // 10_000 + 1)


def test_h5_one_endless_line_is_cut_and_counted() -> None:
    data = b"x" * 10_000_000 + b"\nend\n"
    assert stored(data, [5, 1_000_000], Room(65536, 32768), TextLimits()) == [
        "x" * 4000 + " … 9,996,000 characters left out",
        "end",
    ]


def test_h5_carriage_returns_use_no_space() -> None:
    bars = "".join(f"\r{i:9d}%" for i in range(200_000))
    assert stored(f"before\n{bars}\nafter\n".encode(), [1000, 50_000], Room(65536, 32768), TextLimits()) == [
        "before",
        "   199999%",
        "after",
    ]


def test_h5_endless_coloured_output_shows_its_last_state() -> None:
    storm = "".join(f"\r\x1b[32m{i:9d}%\x1b[0m" for i in range(200_000)).encode()
    assert stored(storm, [], Room(65536, 32768), TextLimits()) == ["\x1b[32m   199999%\x1b[0m"]


@pytest.mark.parametrize("size", range(1, 9))
def test_h5_split_at_every_byte(size: int) -> None:
    data = "aé€😀\n".encode() + b"\xff\xc3\n\xed\xa0\xbd\n\x00\n"
    kept = stored(data, list(range(0, len(data), size)), Room(65536, 32768), TextLimits())
    assert kept == ["aé€😀", "\ufffd\ufffd", "\ufffd\ufffd\ufffd", "\ufffd"]


def test_h5_halves_of_characters() -> None:
    assert encoded("\ud83d\ude00").decode() == "😀"
    assert encoded("a\ud83d").decode() == "a\ufffd"
    assert encoded("plain é").decode() == "plain é"


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        ("\x1b[31mred\x1b[0m", "\x1b[31mred\x1b[0m"),
        ("\x1b[1;31mred", "\x1b[1;31mred\x1b[0m"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1b[2K\x1b[3;4Hhere\x1b[?25l", "here"),
        ("\x1bPdevice\x1b\\x", "x"),
        ("bell\x07 back\x08 \x9b31m", "bell back 31m"),
        ("nul\0", "nul\ufffd"),
        ("cut \x1b[3", "cut "),
        ("tab\tstays", "tab\tstays"),
    ],
)
def test_s10_only_colours_are_stored(line: str, kept: str) -> None:
    assert clean(line) == kept


@example("0\x1b\n0", [3])  # the newline behind a code that is not one was lost
@given(st.text("ab\n\r\x1b[A0;m", max_size=60), st.lists(st.integers(0, 60), max_size=8))
def test_codes_may_be_cut_anywhere(text: str, cuts: list[int]) -> None:
    whole, pieces = Lines(), Lines()
    whole.feed(text)
    for start, end in pairwise([0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]):
        pieces.feed(text[start:end])
    assert pieces.lines() == whole.lines()


def test_two_bars_at_once_are_two_lines() -> None:
    lines = Lines()
    lines.feed("start\n")
    for outer in range(3):
        lines.feed(f"\router {outer}")
        for inner in range(5):
            lines.feed(f"\n\rinner {inner}\x1b[A")
    lines.feed("\n\nend\n")
    assert lines.lines() == ["start", "outer 2", "inner 4", "end"]


def test_clear_output_and_updates_leave_the_last_state() -> None:
    shown = OutputBuffer(TextLimits())
    shown.handle(TextDelta(0, "stdout", "old\n"))
    shown.handle(RichOutput(0, {"text/plain": "old"}, {}))
    shown.handle(Cleared(0, wait=True))
    assert shown.lines("stdout") == ["old"], "with wait it stays until something comes"
    shown.handle(RichOutput(0, {"text/plain": "1"}, {}, display_id="a"))
    shown.handle(RichOutput(0, {"text/plain": "2"}, {}, display_id="a", update=True))
    shown.handle(RichOutput(0, {"text/plain": "?"}, {}, display_id="b", update=True))
    assert shown.lines("stdout") == []
    assert [display.data["text/plain"] for display in shown.rich] == ["2"]
    shown.handle(Cleared(0, wait=False))
    assert shown.rich == []


def files(tmp_path: Path, limit: int = 1 << 20) -> LogFile:
    return LogFile(tmp_path / "logs", 2, "stdout", Index(tmp_path / "logs", 2), limit)


def begin_cell(log: LogFile, cell: int) -> None:
    log._index.add(cell=cell, stdout=log.size, stderr=0)


def test_excerpts_of_a_log(tmp_path: Path) -> None:
    log = files(tmp_path)
    for cell in (1, 2, 3):
        begin_cell(log, cell)
        log.append(b"".join(b"cell %d line %d\n" % (cell, i) for i in range(40_000)))
    logs = tmp_path / "logs"
    assert rank_log.excerpt(logs, 2, "stdout", lines=2) == "cell 3 line 39998\ncell 3 line 39999\n"
    assert rank_log.excerpt(logs, 2, "stdout", cell=2, lines=1) == "cell 2 line 39999\n"
    assert rank_log.excerpt(logs, 2, "stdout", cell=1, lines=0) == ""
    assert len(rank_log.excerpt(logs, 2, "stdout", lines=10**9)) <= 2 * rank_log.MAX_BYTES, "bounded"
    with pytest.raises(LookupError, match="it has not run cell 9"):
        rank_log.excerpt(logs, 2, "stdout", cell=9)
    for file in logs.iterdir():
        assert file.stat().st_mode & 0o777 == 0o600
    assert logs.stat().st_mode & 0o777 == 0o700


def test_e5_full_disk_loses_no_output_and_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = files(tmp_path)
    log.append(b"before\n")
    write = os.write
    full = True

    def failing(descriptor: int, data: bytes) -> int:
        if full and descriptor == log._fd:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, data)

    monkeypatch.setattr(output.os, "write", failing)
    log.append(b"in between\n")
    assert log.pop_unlogged() == [(7, b"in between\n")]
    assert log.pop_unlogged() == []
    assert log.missing == 11
    full = False
    log.append(b"after\n")
    text = rank_log.excerpt(tmp_path / "logs", 2, "stdout")
    assert text == "before\nafter\n\n[11 bytes are missing here: No space left on device]\n"


def test_e5_no_log_at_all(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("a file where the folder should be")
    log = files(tmp_path)
    log.append(b"text\n")
    assert log.pop_unlogged() == [(0, b"text\n")]
    assert log.loss_reason == "No space left on device"


def test_log_drops_its_older_half_at_the_limit(tmp_path: Path) -> None:
    log = files(tmp_path, limit=1 << 20)
    begin_cell(log, 1)
    line = b"%07d" + b"." * 1000 + b"\n"
    for i in range(1500):
        log.append(line % i)
    begin_cell(log, 2)
    log.append(b"the end\n")
    log.shrink()
    status = rank_log.path(tmp_path / "logs", 2, "stdout").stat()
    assert status.st_size > 1 << 20
    assert status.st_blocks * 512 <= (1 << 19) + 8192, "the space is given back"
    assert rank_log.excerpt(tmp_path / "logs", 2, "stdout", cell=2) == "the end\n"
    kept = rank_log.excerpt(tmp_path / "logs", 2, "stdout", cell=1, lines=10**9)
    assert "\0" not in kept
    assert kept.endswith("0001499" + "." * 1000 + "\n")


def test_a_forked_child_writes_to_the_same_file(tmp_path: Path) -> None:
    log = files(tmp_path)
    child = os.fork()
    if child == 0:
        log.append(b"child\n")
        os._exit(0)
    os.waitpid(child, 0)
    log.append(b"parent\n")
    assert log.read(0, log.size) == b"child\nparent\n"


def test_random_bytes_never_break_the_pipeline() -> None:
    source = random.Random(5)
    for _ in range(50):
        data = source.randbytes(5000)
        stored(data, [source.randrange(5000) for _ in range(5)], Room(1000, 500), TextLimits(8, 200))
