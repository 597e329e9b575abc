"""Transformation of a cell's text before IPython reads it.

- Comments and empty lines above ``%%hvdrun`` move below it: IPython wants a magic in the first line, people (and
  nbval, papermill) write comments there.
- With %hvdauto on, a plain cell becomes a ``%%hvdrun`` cell. Plain: its first line of code is not a magic, no shell
  command and no question.
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
        """Transform a cell."""
        first = first_of_code(lines)
        if first is None:
            return lines
        if lines[first].split()[0] == MAGIC:
            return lifted(lines, first)
        if self.auto and plain(lines[first]) and asked_by_user(self._request()):
            return [f"{MAGIC}\n", *lines]
        return lines


def first_of_code(lines: list[str]) -> int | None:
    """Return the number of the first line that is neither empty nor a comment."""
    return next((i for i, line in enumerate(lines) if line.strip() and not line.lstrip().startswith("#")), None)


def lifted(lines: list[str], magic: int) -> list[str]:
    """Put the magic first; it never comes without a body, so that ``%%hvdrun -np 4`` alone starts the ranks."""
    head = lines[magic] if lines[magic].endswith("\n") else lines[magic] + "\n"
    body = lines[:magic] + lines[magic + 1 :]
    return [head, *(body or ["\n"])]


def plain(line: str) -> bool:
    """Whether a first line of code is Python, rather than IPython's own."""
    text = line.strip()
    return text[0] not in "%!?" and not text.endswith("?")


def asked_by_user(request: dict[str, Any]) -> bool:
    """Whether a request runs a cell, rather than being a front end's own question. {} is a terminal's.

    Front ends ask whether text is complete, run code silently, or without history (variable inspectors); without
    history and with nobody to answer stdin it is a tool that runs a notebook's cells, such as nbval.
    """
    if not request:
        return True
    content = request.get("content", {})
    cell = content.get("store_history") or not content.get("allow_stdin")
    return request.get("msg_type") == "execute_request" and not content.get("silent") and bool(cell)
