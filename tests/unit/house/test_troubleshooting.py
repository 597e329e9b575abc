"""docs/troubleshooting.md: every message of the table is one that the code can print."""

from __future__ import annotations

import re
from functools import cache

import pytest
from hvdtest.offenders import NATIVE_SUFFIXES, PRODUCT, ROOT, sources, text

ROW = re.compile(r"^\| `([^`]+)` \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)
ROWS = ROW.findall(text(ROOT / "docs" / "troubleshooting.md"))
NEIGHBOURS = re.compile(r'"\s*\n\s*f?"')
SHORTEST = 8
"""Characters of a fragment that identify a message."""


@cache
def literals() -> tuple[str, ...]:
    """The text of each source file, with neighbouring strings joined, as Python and C++ join them."""
    files = [*sources(*PRODUCT), *sources("native", suffixes=NATIVE_SUFFIXES)]
    return tuple(NEIGHBOURS.sub("", text(path)) for path in files)


def is_printed(message: str) -> bool:
    fragments = [part.strip() for part in message.split("…") if part.strip()]
    assert max(map(len, fragments)) >= SHORTEST, f"{message} identifies no message"
    return any(all(fragment in file for fragment in fragments) for file in literals())


def test_the_page_has_rows() -> None:
    assert len(ROWS) >= 25


@pytest.mark.parametrize("message", [row[0] for row in ROWS])
def test_message_is_one_of_the_code(message: str) -> None:
    assert is_printed(message)


def test_unknown_message_is_detected() -> None:
    assert not is_printed("the ranks … have gone fishing")
