"""One exception from many ranks' failures."""

from __future__ import annotations

import builtins
import json
import os
import re
import shutil

import pytest

from hvd_kernel.magics.display.user_errors import MAX_OTHERS, RankError, local_hint, merged_error
from hvd_kernel.protocol.messages import Failure


def failure(
    rank: int, ename: str = "ValueError", evalue: str = "bad", time: float = 1.0, *, secondary: bool = False
) -> Failure:
    return Failure(rank, ename, evalue, ("Traceback", f"line 1 of rank {rank}", f"{ename}: {evalue}"), time, secondary)


def shown(error: RankError) -> list[str]:
    return [re.sub(r"\x1b\[\d+m", "", line) for line in error._render_traceback_()]


def test_root_cause_is_the_first_that_no_other_rank_caused() -> None:
    released = failure(0, "RankFailed", "rank 2 failed", time=0.5, secondary=True)
    error = merged_error([released, failure(3, "KeyError", "'k'", time=3.0), failure(2, time=2.0)])
    assert type(error).__name__ == "ValueError"
    assert isinstance(error, ValueError)
    assert str(error) == "bad"
    assert error.rank == 2
    assert shown(error) == [
        "ValueError on rank 2",
        "Traceback",
        "line 1 of rank 2",
        "ValueError: bad",
        "[3] KeyError: 'k'",
        "[0] released, because rank 2 failed",
    ]


def test_the_same_error_everywhere_is_one() -> None:
    error = merged_error([failure(rank, time=float(rank)) for rank in range(64)])
    assert shown(error) == ["ValueError on ranks 0-63", "Traceback", "line 1 of rank 0", "ValueError: bad"]


def test_simultaneous_equal_errors_have_a_stable_root() -> None:
    error = merged_error(
        [failure(1, evalue="1", time=5.0), failure(0, evalue="0", time=5.2), failure(2, "KeyError", "2", 5.1)]
    )
    assert (type(error).__name__, str(error), error.rank) == ("ValueError", "0", 0)
    assert shown(error)[-2:] == ["[1] ValueError: 1", "[2] KeyError: 2"]
    later = merged_error([failure(1, evalue="1", time=5.0), failure(0, evalue="0", time=7.0)])
    assert str(later) == "1"


def test_death_is_the_root_whatever_other_ranks_raised() -> None:
    died = Failure(2, "RankDied", "rank 2 died: crash", ("RankDied: rank 2 died: crash", "its stack"), 9.0)
    raised = [failure(rank, "NameError", "name 'x'", time=1.0) for rank in (0, 1)]
    error = merged_error([*raised, failure(3, "KeyError", "'k'", time=2.0), died])
    assert (type(error).__name__, error.rank) == ("RankDied", 2)
    assert shown(error) == [
        "RankDied on rank 2",
        "RankDied: rank 2 died: crash",
        "its stack",
        "NameError on ranks 0-1",
        "Traceback",
        "line 1 of rank 0",
        "NameError: name 'x'",
        "[3] KeyError: 'k'",
    ]


def test_only_released_ranks() -> None:
    error = merged_error([failure(rank, "RankDied", "rank 1 died", secondary=True) for rank in (0, 2)])
    assert type(error).__name__ == "RankDied"
    assert shown(error)[0] == "RankDied on ranks 0,2"
    assert len(shown(error)) == 4


def test_many_different_errors_are_bounded() -> None:
    error = merged_error([failure(rank, evalue=f"bad {rank}") for rank in range(64)])
    assert len(shown(error)) == 4 + MAX_OTHERS + 1
    assert shown(error)[-1] == f"… and {63 - MAX_OTHERS} more"
    assert sum(map(len, shown(error))) < 3000


def test_every_class_keeps_its_name_and_message() -> None:
    names = sorted(n for n, c in vars(builtins).items() if isinstance(c, type) and issubclass(c, BaseException))
    for name in [*names, "MyError"]:
        error = merged_error([failure(1, name, "the message")])
        assert (type(error).__name__, str(error)) == (name, "the message")
        assert isinstance(error, Exception), name


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        (5, "`x` exists in the notebook, not on the ranks: add --push x"),
        (
            failure,
            f"`x` is imported in the notebook, not on the ranks: add `from {__name__} import failure as x` to the cell",
        ),
        (
            os.path,
            f"`x` is imported in the notebook, not on the ranks: add `import {os.path.__name__} as x` to the cell",
        ),
        (
            shutil.copy,
            "`x` is imported in the notebook, not on the ranks: add `from shutil import copy as x` to the cell",
        ),
        (
            (n for n in ()),
            "`x` (generator) exists in the notebook and cannot be sent: create it in a cell on the ranks",
        ),
    ],
    ids=["value", "function of a module", "module", "imported function", "generator"],
)
def test_a_name_of_the_notebook_is_hinted_at(value: object, hint: str) -> None:
    missing = failure(0, "NameError", "name 'x' is not defined")
    assert shown(merged_error([missing], local_hint({"x": value})))[-1] == hint
    assert shown(merged_error([missing], local_hint({"y": value}))) == shown(merged_error([missing]))


def test_imports_and_functions_are_hinted_at() -> None:
    def train() -> None: ...

    train.__module__ = "__main__"
    hint = local_hint({"json": json, "train": train})
    assert hint("json") == "`json` is imported in the notebook, not on the ranks: add `import json` to the cell"
    assert hint("train") == "`train` exists in the notebook, not on the ranks: add --push train"
