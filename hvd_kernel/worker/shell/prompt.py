"""Prompts of a rank to the user, for input(), getpass() and the debugger: the notebook replies with a line.

The requesting thread waits in a queue, where an interrupt reaches it; the rank's control thread delivers the answer.

Terms.
  prompt    one request for a line, numbered per rank; open until it is answered or interrupted, or its cell ends
  typed     the answer: the user's line, the end of input, or a refusal with its reason
  parked    the main thread waits at a prompt, and the other ranks wait for it
"""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from IPython.core.error import StdinNotImplementedError

from hvd_kernel.protocol.messages import PROMPT_TYPE, Prompt, to_content

Publish = Callable[[str, dict[str, Any], dict[str, Any]], None]

ANY = 0
"""As a prompt's number: the oldest open prompt that is not for a password."""

_NO_CELL = "input: no cell of this rank is running, so no user can answer: call it while the cell runs"


class RankPrompts:
    """Open prompts of this rank. Threads of the user's code call ``request``, the control thread ``deliver``."""

    def __init__(self, rank: int, publish: Publish, park: Callable[[bool], None] = lambda _: None) -> None:
        self.rank = rank
        self._publish = publish
        self._park = park  # notifies the other ranks that this one waits for the user
        self._numbers = itertools.count(1)
        self._open: dict[int, tuple[Prompt, queue.SimpleQueue[Mapping[str, Any]]]] = {}
        self._in_cell = False
        self._parked = 0  # prompts of the main thread; a signal handler may open one inside another

    @property
    def parked(self) -> bool:
        """Whether the main thread waits for the user. Any thread."""
        return self._parked > 0

    @contextmanager
    def during_cell(self) -> Iterator[None]:
        """Allow prompts until the block ends; threads that still wait then get a refusal."""
        self._in_cell = True
        try:
            yield
        finally:
            self._in_cell = False
            for _, answer in list(self._open.values()):
                answer.put({"refused": _NO_CELL})

    def request(self, text: str, *, password: bool, parent: dict[str, Any]) -> str:
        """Request a line from the user and return it.

        Raises
        ------
        EOFError
            The user ended the input.
        StdinNotImplementedError
            No user can answer.
        """
        prompt = Prompt(self.rank, next(self._numbers), text, password)
        answer: queue.SimpleQueue[Mapping[str, Any]] = queue.SimpleQueue()
        self._open[prompt.number] = prompt, answer
        try:
            if not self._in_cell:  # checked after opening: a cell that ends refuses all open prompts
                raise StdinNotImplementedError(_NO_CELL)
            with self._parking():
                self._publish(PROMPT_TYPE, to_content(prompt), parent)
                return _line(answer.get())
        finally:
            del self._open[prompt.number]

    @property
    def unanswered(self) -> list[dict[str, Any]]:
        """Open prompts, for a kernel that attaches while this rank waits. Any thread."""
        return [to_content(prompt) for prompt, _ in list(self._open.values())]

    @contextmanager
    def _parking(self) -> Iterator[None]:
        is_main = threading.current_thread() is threading.main_thread()
        self._parked += is_main
        try:
            if is_main and self._parked == 1:
                self._park(True)
            yield
        finally:
            self._parked -= is_main
            if is_main and not self._parked:
                self._park(False)

    def deliver(self, typed: Mapping[str, Any]) -> bool:
        """Deliver an answer to its prompt; return False if that prompt is no longer open."""
        number = typed["number"]
        for prompt, answer in list(self._open.values()):
            if number == prompt.number or (number == ANY and not prompt.password):
                answer.put(typed)
                return True
        return False


def _line(typed: Mapping[str, Any]) -> str:
    if "refused" in typed:
        raise StdinNotImplementedError(typed["refused"])
    if typed.get("eof"):
        raise EOFError
    return str(typed["text"])
