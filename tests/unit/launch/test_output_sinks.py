"""Destinations of output: what a full disk does not accept is counted, and files are rotated."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from hvd_kernel.launch.output_sinks import OLDER, OutputLoss, RankFile, report_loss, writer

FULL = os.strerror(errno.ENOSPC)


@pytest.fixture
def full() -> Iterator[io.TextIOWrapper]:
    """Open the device that is always full. Its end raises if bytes are left in a buffer, as Python's exit does."""
    with Path("/dev/full").open("w") as stream:
        yield stream


def test_bytes_that_a_full_disk_does_not_accept_are_counted(full: io.TextIOWrapper) -> None:
    loss = OutputLoss()
    write = writer(full, full, loss, "stdout")
    write(b"12345")
    write(b"678")
    assert loss.bytes == {"stdout": 8}
    assert loss.text == f"output was lost: 8 bytes of stdout ({FULL})"


def test_loss_is_reported_once(full: io.TextIOWrapper) -> None:
    loss, reported = OutputLoss(), list[bytes]()
    report_loss(loss, reported.append)
    writer(full, full, loss, "stdout")(b"1")
    writer(full, full, loss, "stderr")(b"12")
    report_loss(loss, reported.append)
    assert reported == [f"hvdrun: output was lost: 1 byte of stdout ({FULL}), 2 bytes of stderr ({FULL})\n".encode()]


def test_closed_pipe_is_an_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as stream:
        write = writer(stream, stream, OutputLoss(), "stdout")
        with pytest.raises(BrokenPipeError):
            write(b"1")


def test_full_pipe_of_another_process_is_awaited() -> None:
    """A program that shares the terminal may have made it non-blocking."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    data = bytes(range(256)) * 1024  # four times what a pipe holds
    received = bytearray()
    child = os.fork()
    if not child:
        os.close(reading)
        with os.fdopen(writing, "w") as stream:
            writer(stream, stream, OutputLoss(), "stdout")(data)
        os._exit(0)
    os.close(writing)
    while chunk := os.read(reading, 1 << 16):
        received += chunk
    os.close(reading)
    assert (os.waitpid(child, 0)[1], received) == (0, data)


def test_streams_of_text_and_bytes() -> None:
    text, data = io.StringIO(), io.BytesIO()
    for stream in (text, data):
        writer(stream, stream, OutputLoss(), "stdout")("ä\n".encode())
    assert (text.getvalue(), data.getvalue()) == ("ä\n", "ä\n".encode())


def test_a_file_is_rotated_at_its_size(tmp_path: Path) -> None:
    path, loss = tmp_path / "stdout", OutputLoss()
    file = RankFile(path, loss, "DIR", 10)
    for text in ("one\n", "two\n", "three\n", "four\n", "five\n", "eleven bytes\n", "six\n"):
        file.write(text.encode())
    file.close()
    assert (path.read_text(), path.with_name("stdout" + OLDER).read_text()) == ("six\n", "eleven bytes\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["stdout", "stdout.1"]
    file.write(b"late\n")  # of a descendant
    file.close()
    assert (path.read_text(), loss.text) == ("six\nlate\n", "")


def test_a_file_without_a_limit_is_not_rotated(tmp_path: Path) -> None:
    file = RankFile(tmp_path / "stdout", OutputLoss(), "DIR")
    for _ in range(100):
        file.write(b"x" * 1000)
    file.close()
    assert [(path.name, path.stat().st_size) for path in tmp_path.iterdir()] == [("stdout", 100_000)]


def test_file_that_cannot_be_written_is_counted(tmp_path: Path) -> None:
    loss = OutputLoss()
    (tmp_path / "stdout").symlink_to("/dev/full")
    file = RankFile(tmp_path / "stdout", loss, "DIR")
    file.write(b"12345")
    file.close()
    missing = RankFile(tmp_path / "gone" / "stdout", loss, "gone")
    missing.write(b"123")
    missing.close()
    assert loss.bytes == {"DIR": 5, "gone": 3}


def test_rotation_that_fails_keeps_the_file(tmp_path: Path) -> None:
    loss = OutputLoss()
    (tmp_path / "stdout.1").mkdir()
    (tmp_path / "stdout.1" / "occupied").touch()
    file = RankFile(tmp_path / "stdout", loss, "DIR", 4)
    for text in (b"one\n", b"two\n"):
        file.write(text)
    file.close()
    assert ((tmp_path / "stdout").read_text(), loss.bytes) == ("one\n", {"DIR": 4})


@pytest.mark.parametrize("parts", [[b"one\ntwo\nthree\nlonger\nend\n"], [b"one\ntw", b"o\nthree\nlonger\n", b"end\n"]])
def test_no_file_is_larger_than_its_limit(tmp_path: Path, parts: list[bytes]) -> None:
    """Output that arrived at once was written to one file, however long."""
    sizes: list[int] = []
    file = RankFile(tmp_path / "stdout", OutputLoss(), "DIR", 10)
    for part in parts:
        file.write(part)
        sizes += [path.stat().st_size for path in tmp_path.iterdir()]
    file.close()
    assert max(sizes) <= 10
    assert (tmp_path / "stdout").read_bytes().endswith(b"end\n")
    assert (tmp_path / "stdout.1").read_bytes()
