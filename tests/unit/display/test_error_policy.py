"""--no-raise-error: which errors are the ranks', how they are shown, and where they are kept."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from hvdtest.magic_lines import parse

from hvd_kernel.errors import ClusterError, HvdTimeout, UsageError
from hvd_kernel.magics.display.user_errors import OF_THE_RANKS, merged_error, show_error
from hvd_kernel.magics.interrupts import Interrupted
from hvd_kernel.magics.options import Options
from hvd_kernel.protocol.messages import Failure


class FakeWriter:
    def __init__(self) -> None:
        self.said: list[tuple[str, str]] = []

    def write(self, text: str, stream: str = "stdout") -> None:
        self.said.append((stream, text))


def failed() -> Any:
    return merged_error([Failure(1, "ValueError", "bad", ("Traceback", "ValueError: bad"), 1.0)])


def test_option_is_spelled_as_in_ipythons_script_magic() -> None:
    assert parse("%%hvdrun", "--no-raise-error") == Options(raise_error=False)
    assert parse("%%hvdrun", "--bg train --no-raise-error") == Options(bg="train", raise_error=False)
    assert parse("%%hvdrun", "").raise_error


def test_merged_traceback_is_shown_and_kept_for_the_debugger() -> None:
    writer, error = FakeWriter(), failed()
    show_error(error, writer)
    assert writer.said == [("stderr", "\x1b[31mValueError\x1b[0m on rank 1\nTraceback\nValueError: bad\n")]
    assert (sys.last_value, sys.last_type, sys.last_traceback) == (error, type(error), None)


def test_error_without_a_traceback_is_one_sentence() -> None:
    writer = FakeWriter()
    show_error(HvdTimeout("too long"), writer)
    assert writer.said == [("stderr", "\x1b[31mHvdTimeout\x1b[0m: too long\n")]


@pytest.mark.parametrize(
    ("error", "of_the_ranks"),
    [
        (failed(), True),
        (HvdTimeout("more than --timeout"), True),
        (UsageError("a wrong option"), False),
        (ClusterError("a dead rank"), False),
        (Interrupted("the key"), False),
        (ValueError("ours"), False),
    ],
)
def test_only_errors_of_ranks_are_not_raised(error: BaseException, of_the_ranks: bool) -> None:
    assert isinstance(error, OF_THE_RANKS) == of_the_ranks
