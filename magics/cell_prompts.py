"""Prompts of the ranks - input(), getpass(), the debugger - under the cell, one at a time, in rank order.

The loop around the run calls ``tick``, which does not block in a notebook, so that a rank's death, the interrupt key
and live output are handled while the user types. A job's prompts wait for %hvdpdb; without a user (nbval, papermill)
they are refused.

Terms.
  open        a prompt that has no answer yet
  shown       the open prompt that the user sees now
  expected    a rank whose next prompt is likely within SETTLE_S: the user stays with a rank that is stepped, and
              starts with the lowest
  cast        a line for several ranks: ``@0,2 n``, or ``@all n`` for those that are at a prompt or expected there;
              ``@@all n`` is the text ``@all n``
"""

from __future__ import annotations

import getpass
import re
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import zmq

from hvd_kernel.errors import UsageError
from hvd_kernel.formatting.rank_labels import label, rank_list
from hvd_kernel.magics.options import resolve
from hvd_kernel.protocol.messages import Event, Prompt, RankDone, RankJoined, RankLeft

if TYPE_CHECKING:
    from hvd_kernel.cluster import Session
    from hvd_kernel.cluster.requests.gather import Gather
    from hvd_kernel.magics.display.cell_output import CellOutput
    from hvd_kernel.magics.display.writer import Writer


END_OF_INPUT = "\x04"
"""The text that a front end sends for Ctrl-D."""


class PromptFrontEnd(Protocol):
    """A front end that shows text and answers one prompt at a time."""

    def write(self, text: str, stream: str = "stdout") -> None:
        """Write to the running cell."""

    def show_prompt(self, text: str, *, password: bool) -> None:
        """Show the prompt."""

    def poll(self) -> str | None:
        """Return the user's line, None if it has not arrived."""


class NotebookFrontEnd:
    """A notebook's input box."""

    def __init__(self, writer: Writer, kernel: Any) -> None:
        self.write = writer.write
        self._kernel = kernel
        self._question = ""

    def show_prompt(self, text: str, *, password: bool) -> None:
        """Send the prompt to the front end that runs the cell, and discard late answers to earlier prompts."""
        kernel = self._kernel
        while self._reply() is not None:
            pass
        ident = kernel._get_shell_context_var(kernel._shell_parent_ident)  # noqa: SLF001 - as its own raw_input does
        content = {"prompt": text, "password": password}
        sent = kernel.session.send(
            kernel.stdin_socket, "input_request", content, kernel.get_parent("shell"), ident=ident
        )
        self._question = sent["header"]["msg_id"]

    def poll(self) -> str | None:
        """Return the line if it has arrived; an answer to another prompt is ignored."""
        reply = self._reply()
        if reply is None or reply["parent_header"].get("msg_id", self._question) != self._question:
            return None
        return str(reply["content"].get("value", ""))

    def _reply(self) -> dict[str, Any] | None:
        reply: dict[str, Any] | None = self._kernel.session.recv(self._kernel.stdin_socket, zmq.NOBLOCK)[1]
        return reply


class TerminalFrontEnd:
    """A terminal's own line, which blocks; Ctrl-C there is a press of the interrupt key."""

    def __init__(self, writer: Writer) -> None:
        self.write = writer.write
        self._question: tuple[str, bool] = "", False

    def show_prompt(self, text: str, *, password: bool) -> None:
        """Store the prompt for ``poll``."""
        self._question = text, password

    def poll(self) -> str | None:
        """Show the prompt and block until the user's line; None after an interrupt."""
        text, password = self._question
        pressed = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            return getpass.getpass(text) if password else input(text)
        except EOFError:
            return END_OF_INPUT
        except KeyboardInterrupt:
            if callable(pressed):
                pressed(signal.SIGINT, None)
            return None
        finally:
            signal.signal(signal.SIGINT, pressed)


def front_end_at(writer: Writer) -> PromptFrontEnd | None:
    """Return the front end that answers prompts, None without a user."""
    if writer.terminal:
        return TerminalFrontEnd(writer)
    return NotebookFrontEnd(writer, writer.kernel) if writer.interactive else None


SETTLE_S = 0.4
"""Time to wait for an expected prompt before another rank's is shown."""

CAST_S = 2.0
"""Time that a cast waits for a named rank that is not at a prompt yet."""

NO_USER = (
    "input, getpass and breakpoint need a user, and this notebook runs without one "
    "(as under nbconvert, papermill and nbval). Leave them out, or set PYTHONBREAKPOINT=0 to ignore breakpoints"
)
_CAST = re.compile(r"@(@?)(all|root|[\d:][\d,:-]*) (.*)", re.DOTALL)


@dataclass(frozen=True)
class Cast:
    """A line to send once its ranks are at a prompt."""

    ranks: tuple[int, ...]
    line: str
    named: bool  # the user named these ranks, rather than all
    until: float


class CellPrompts:
    """The prompts of one cell. The loop that drives it calls ``handle`` and ``tick``; other methods are thread-safe."""

    def __init__(
        self, session: Session, output: CellOutput, ranks: Sequence[int], front_end: PromptFrontEnd | None = None
    ) -> None:
        self._session = session
        self._output = output
        self._front_end = front_end
        self._lock = threading.Condition()
        self._running = set(ranks)
        self._open: dict[tuple[int, int], Prompt] = {}
        self._expected: dict[int, float] = {}
        self._shown: Prompt | None = None
        self._cast: Cast | None = None
        self._sent: list[tuple[Prompt, str, Gather]] = []  # lines whose acceptance the ranks have not confirmed
        self._begun = False
        self._parked = False
        self._since = 0.0  # when the first of the open prompts arrived
        self._waited = 0.0
        self._requested: set[int] = set()  # ranks whose text a caller of collect() waits for
        self._texts: dict[int, str] = {}

    def park(self, *, has_user: bool) -> None:
        """Show no prompts: they wait for ``cast``, or are refused without a user."""
        self._front_end = None
        self._parked = has_user

    @property
    def waited(self) -> float:
        """Seconds that ranks have waited for the user; timeouts do not count them."""
        return self._waited + (time.monotonic() - self._since if self._open else 0.0)

    def waiting(self) -> dict[int, Prompt]:
        """Return each rank's oldest open prompt, except for passwords."""
        with self._lock:
            oldest: dict[int, Prompt] = {}
            for (rank, _), prompt in sorted(self._open.items()):
                if not prompt.password:
                    oldest.setdefault(rank, prompt)
            return oldest

    def handle(self, event: Event) -> None:
        """Record a new prompt, or the end of a rank's prompts."""
        if isinstance(event, Prompt):
            self._handle_prompt(event)
        elif isinstance(event, RankJoined):
            with self._lock:
                self._running.add(event.rank)
        elif isinstance(event, RankDone | RankLeft):
            with self._lock:
                self._running.discard(event.rank)
                self._close([key for key in self._open if key[0] == event.rank])

    def tick(self) -> None:
        """Show the next prompt, or send its answer; called often."""
        self._collect_texts()
        if self._front_end is None:
            return
        self._report_rejected_lines(self._front_end)
        if self._cast is not None and not self._send_cast(self._front_end, self._cast):
            return
        prompt = self._shown
        if prompt is None or (prompt.rank, prompt.number) not in self._open:
            prompt = self._shown = self._next()
            if prompt is not None:
                self._front_end.write(self._output.pop_unseen(prompt.rank))
                self._front_end.show_prompt(f"{label([prompt.rank])} {prompt.text}", password=prompt.password)
        if prompt is not None and (line := self._front_end.poll()) is not None:
            self._shown = None
            self._answer(self._front_end, prompt, line)

    def withdraw(self) -> None:
        """Close all open prompts, because the ranks are being interrupted."""
        with self._lock:
            self._close(list(self._open))
            self._shown = self._cast = None

    def cast(self, ranks: Sequence[int], line: str) -> list[int]:
        """Answer the prompts of several ranks, and return the ranks without a prompt."""
        prompts = self.waiting()
        for rank in ranks:
            if rank in prompts:
                self._send(prompts[rank], _typed(line))
        return [rank for rank in ranks if rank not in prompts]

    def collect(self, ranks: Sequence[int], timeout: float) -> str:
        """Wait until ranks are at a prompt again or done, and return their output before the prompt, labelled.

        The output of a rank without a prompt stays in its cell's output, so that the result does not depend on timing.
        """
        with self._lock:
            self._lock.wait_for(lambda: not self._running & set(ranks) - set(self.waiting()), timeout)
            self._requested |= set(ranks)
            self._lock.wait_for(lambda: not self._running or not self._requested & set(ranks), timeout)
            return "".join(self._texts.pop(rank, "") + self._state(rank) for rank in ranks)

    def _handle_prompt(self, prompt: Prompt) -> None:
        if self._front_end is None and not self._parked:
            self._send(prompt, {"refused": NO_USER})
            return
        now = time.monotonic()
        with self._lock:
            if not self._begun:
                self._begun = True
                self._expected = dict.fromkeys(self._running, now + SETTLE_S)
            self._expected.pop(prompt.rank, None)
            self._since = self._since if self._open else now
            self._open[prompt.rank, prompt.number] = prompt
            self._lock.notify_all()

    def _next(self) -> Prompt | None:
        if not self._open:
            return None
        first = min(self._open)
        now = time.monotonic()
        early = [rank for rank in self._running if rank < first[0] and self._expected.get(rank, 0.0) > now]
        return None if early else self._open[first]

    def _answer(self, front_end: PromptFrontEnd, prompt: Prompt, line: str) -> None:
        cast = None if prompt.password else _CAST.fullmatch(line)
        if cast is None or cast[1]:
            self._send(prompt, _typed(line[1:] if cast else line))
            return
        try:
            ranks = resolve(cast[2], self._session.n)
        except UsageError as error:
            front_end.write(f"{error}\n", "stderr")
            return
        self._cast = Cast(ranks, cast[3], cast[2] != "all", time.monotonic() + CAST_S)

    def _send_cast(self, front_end: PromptFrontEnd, cast: Cast) -> bool:
        """Send a cast once its ranks are at a prompt or late; return whether it was sent."""
        prompts = self.waiting()
        now = time.monotonic()
        late = [rank for rank in cast.ranks if rank in self._running and rank not in prompts]
        if any(now < (cast.until if cast.named else self._expected.get(rank, 0.0)) for rank in late):
            return False
        self._cast = None
        absent = self.cast(cast.ranks, cast.line)
        if absent and cast.named:
            verb = "is" if len(absent) == 1 else "are"
            front_end.write(f"{rank_list(absent)} {verb} not at a prompt and did not get {cast.line!r}\n", "stderr")
        return True

    def _send(self, prompt: Prompt, typed: Mapping[str, Any]) -> None:
        with self._lock:
            self._close([(prompt.rank, prompt.number)])
            self._expected[prompt.rank] = time.monotonic() + SETTLE_S
        answer = self._session.post("typed", [prompt.rank], {"number": prompt.number, **typed}, urgent=True)
        if self._front_end is not None:
            line = "the answer" if prompt.password else repr(typed.get("text", "the end of input"))
            with self._lock:
                self._sent.append((prompt, line, answer))

    def _report_rejected_lines(self, front_end: PromptFrontEnd) -> None:
        """Report lines whose prompt had ended on its rank; a line for a slow rank stays pending."""
        with self._lock:
            answered = [(prompt, line, answer.so_far()) for prompt, line, answer in self._sent]
            self._sent = [sent for sent, (*_, reply) in zip(self._sent, answered, strict=True) if not reply]
        for prompt, line, reply in answered:
            if reply and reply[prompt.rank].get("taken") is False:
                front_end.write(f"{rank_list([prompt.rank])} no longer asks and did not get {line}\n", "stderr")

    def _close(self, keys: Sequence[tuple[int, int]]) -> None:
        was_open = bool(self._open)
        for key in keys:
            self._open.pop(key, None)
        if was_open and not self._open:
            self._waited += time.monotonic() - self._since
        self._lock.notify_all()

    def _collect_texts(self) -> None:
        """Fetch the text for callers of ``collect``; only this thread uses the cell's output."""
        if self._requested:
            with self._lock:
                self._texts.update(
                    {rank: self._output.pop_unseen(rank) for rank in self._requested & set(self.waiting())}
                )
                self._requested.clear()
                self._lock.notify_all()

    def _state(self, rank: int) -> str:
        prompt = self.waiting().get(rank)
        if prompt is not None:
            return f"{label([rank])} {prompt.text}".rstrip() + "\n"
        return (
            f"{label([rank])} is not at a prompt: it {'runs on' if rank in self._running else 'has ended the cell'}\n"
        )


def _typed(line: str) -> dict[str, Any]:
    return {"eof": True} if line == END_OF_INPUT else {"text": line}
