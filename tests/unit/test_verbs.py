"""The words of %hvd: found, refused with the nearest one, and listed."""

from __future__ import annotations

import pytest

from hvd_kernel.errors import UsageError
from hvd_kernel.magics.commands.index import VERBS, find, usage
from hvd_kernel.magics.options import parse


def test_without_a_word_it_is_status() -> None:
    assert find(parse("%hvd", "")) is VERBS["status"]
    assert find(parse("%hvd", "help")) is VERBS["help"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("stats", "%hvd: 'stats' is not understood: did you mean status?; %hvd help lists the commands"),
        ("restrat now", "%hvd: 'restrat now' is not understood: did you mean restart?; %hvd help lists the commands"),
        ("begin", "%hvd: 'begin' is not understood; %hvd help lists the commands"),
        ("stop now", "%hvd: 'stop now' has too many words: write %hvd stop"),
    ],
)
def test_a_word_that_is_none_is_told_with_the_nearest(line: str, said: str) -> None:
    with pytest.raises(UsageError) as error:
        find(parse("%hvd", line))
    assert str(error.value) == said


def test_help_lists_every_word() -> None:
    assert all(f"    {verb.usage}" in usage() for verb in VERBS.values())
