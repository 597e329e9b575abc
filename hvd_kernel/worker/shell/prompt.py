"""A rank's questions to the user - input(), getpass(), the debugger - go to the notebook, and lines come back.

The thread that asks waits in a queue, where an interrupt reaches it; the rank's control thread brings the answer.

Terms.
  prompt    one question, numbered in this rank; open until it is answered, interrupted, or its cell ends
  typed     the answer: the user's line, or the end of input, or a refusal that says why nobody can be asked
  parked    the main thread waits at a prompt, and the other ranks for it
"""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from IPython.core.error import StdinNotImplementedError

from hvd_kernel.protocol.messages import PROMPT_TYPE, Prompt, to_wire

Publish = Callable[[str, dict[str, Any], dict[str, Any]], None]

ANY = 0
"""As a prompt's number: the oldest one that is open and asks for no password."""

_NO_CELL = "input: no cell of this rank is running, so nobody can be asked: ask while the cell runs"


class RankPrompts:
    """The open prompts of this rank. ``ask`` is for threads of the user's code, ``take`` for the control thread."""

    def __init__(self, rank: int, publish: Publish, park: Callable[[bool], None] = lambda _: None) -> None:
        self.rank = rank
        self._publish = publish
        self._park = park  # the other ranks learn whether this one waits for the user
        self._numbers = itertools.count(1)
        self._open: dict[int, tuple[Prompt, queue.SimpleQueue[Mapping[str, Any]]]] = {}
        self._in_cell = False
        self._parked = 0  # prompts of the main thread: a signal handler of the user's may ask inside another one

    @property
    def parked(self) -> bool:
        """Tell whether the main thread waits for the user. Any thread."""
        return self._parked > 0

    @contextmanager
    def during_cell(self) -> Iterator[None]:
        """Let prompts be asked until the block ends; threads that still wait then are refused."""
        self._in_cell = True
        try:
            yield
        finally:
            self._in_cell = False
            for _, answer in list(self._open.values()):
                answer.put({"refused": _NO_CELL})

    def ask(self, text: str, *, password: bool, parent: dict[str, Any]) -> str:
        """Ask the user and return the line.

        Raises
        ------
        EOFError
            The user ended the input.
        StdinNotImplementedError
            Nobody can be asked.
        """
        prompt = Prompt(self.rank, next(self._numbers), text, password)
        answer: queue.SimpleQueue[Mapping[str, Any]] = queue.SimpleQueue()
        self._open[prompt.number] = prompt, answer
        try:
            if not self._in_cell:  # looked at only now: a cell that ends refuses what is open by then
                raise StdinNotImplementedError(_NO_CELL)
            with self._parking():
                self._publish(PROMPT_TYPE, to_wire(prompt), parent)
                return _line(answer.get())
        finally:
            del self._open[prompt.number]

    @property
    def unanswered(self) -> list[dict[str, Any]]:
        """The open prompts, for a kernel that comes while this rank asks. Any thread."""
        return [to_wire(prompt) for prompt, _ in list(self._open.values())]

    @contextmanager
    def _parking(self) -> Iterator[None]:
        mine = threading.current_thread() is threading.main_thread()
        self._parked += mine
        try:
            if mine and self._parked == 1:
                self._park(True)
            yield
        finally:
            self._parked -= mine
            if mine and not self._parked:
                self._park(False)

    def take(self, typed: Mapping[str, Any]) -> bool:
        """Hand an answer to the prompt that it names; False where that prompt is not open any more."""
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
