"""Transformation of a cell's text before IPython reads it.

- Comments and empty lines above ``%%hvdrun`` move below it: IPython requires a magic in the first line, while users,
  nbval and papermill write comments there.
- With %hvdauto on, a plain cell becomes a ``%%hvdrun`` cell. Plain: its first line of code is neither a magic nor a
  shell command nor a question.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

MAGIC = "%%hvdrun"


class Transformer:
    """An input transformer (a list of lines in, a list of lines out) with one switch."""

    has_side_effects = False

    def __init__(self, request: Callable[[], dict[str, Any]]) -> None:
        self.auto = False
        self._request = request

    def __call__(self, lines: list[str]) -> list[str]:
        """Return the transformed lines of a cell."""
        first = first_of_code(lines)
        if first is None:
            return lines
        if lines[first].split()[0] == MAGIC:
            return lift_magic(lines, first)
        if self.auto and plain(lines[first]) and runs_a_cell(self._request()):
            return [f"{MAGIC}\n", *lines]
        return lines


def first_of_code(lines: list[str]) -> int | None:
    """Return the number of the first line that is neither empty nor a comment."""
    return next((i for i, line in enumerate(lines) if line.strip() and not line.lstrip().startswith("#")), None)


def lift_magic(lines: list[str], magic: int) -> list[str]:
    """Move the magic to the first line; a body is added if there is none, so that ``%%hvdrun -np 4`` alone runs."""
    head = lines[magic] if lines[magic].endswith("\n") else lines[magic] + "\n"
    body = lines[:magic] + lines[magic + 1 :]
    return [head, *(body or ["\n"])]


def plain(line: str) -> bool:
    """Return whether a first line of code is Python, not IPython's own syntax."""
    text = line.strip()
    return text[0] not in "%!?" and not text.endswith("?")


def runs_a_cell(request: dict[str, Any]) -> bool:
    """Return whether a request runs a cell; others are a front end's own. {} is a terminal's.

    Front ends check whether text is complete, run code silently, or without history (variable inspectors). Without
    history and without a user who answers stdin, the request is from a tool that runs notebooks, such as nbval.
    """
    if not request:
        return True
    content = request.get("content", {})
    cell = content.get("store_history") or not content.get("allow_stdin")
    return request.get("msg_type") == "execute_request" and not content.get("silent") and bool(cell)
