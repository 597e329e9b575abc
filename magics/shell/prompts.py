"""Questions of the ranks - input(), getpass(), the debugger - as prompts under the cell, one at a time, in rank order.

The loop around the run calls ``tick``; nothing here blocks it where a front end answers, so that a rank's death, the
interrupt key and live output are seen while the user thinks. A job's prompts wait for %hvdpdb; where there is nobody
(nbval, papermill) ranks are told so.

Terms.
  open        asked by a rank and not answered yet
  asked       the open prompt that the user sees now
  expected    a rank that may ask in a moment: the user stays with a rank that is stepped, and starts with the lowest
  cast        a line for several ranks: ``@0,2 n``, or ``@all n`` for those that are at a prompt or expected there;
              ``@@all n`` is the text ``@all n``
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hvd_kernel.errors import UsageError
from hvd_kernel.formatting.rank_labels import label, rank_list
from hvd_kernel.magics.options import resolve
from hvd_kernel.magics.shell.prompt_front_end import END_OF_INPUT, PromptFrontEnd
from hvd_kernel.protocol.messages import Event, Prompt, RankDone, RankJoined, RankLeft

if TYPE_CHECKING:
    from hvd_kernel.cluster import Session
    from hvd_kernel.cluster.requests.gather import Gather
    from hvd_kernel.magics.display.render import Renderer

SETTLE_S = 0.4
"""How long a rank is expected to ask (again) before another one's prompt is shown."""

CAST_S = 2.0
"""How long a cast waits for a rank that it names and that is at no prompt yet."""

NOBODY = (
    "input, getpass and breakpoint need a user, and this notebook runs without one "
    "(as under nbconvert, papermill and nbval). Leave them out, or set PYTHONBREAKPOINT=0 to ignore breakpoints"
)
_CAST = re.compile(r"@(@?)(all|root|[\d:][\d,:-]*) (.*)", re.DOTALL)


@dataclass(frozen=True)
class Cast:
    """A line that waits until its ranks are at a prompt."""

    ranks: tuple[int, ...]
    line: str
    named: bool  # the user has named these ranks, rather than all
    until: float


class RunPrompts:
    """The prompts of one run. ``take`` and ``tick`` are for the loop that drives it, the rest for any thread."""

    def __init__(
        self, session: Session, renderer: Renderer, ranks: Sequence[int], front_end: PromptFrontEnd | None = None
    ) -> None:
        self._session = session
        self._renderer = renderer
        self._front_end = front_end
        self._lock = threading.Condition()
        self._running = set(ranks)
        self._open: dict[tuple[int, int], Prompt] = {}
        self._expected: dict[int, float] = {}
        self._asked: Prompt | None = None
        self._cast: Cast | None = None
        self._sent: list[tuple[Prompt, str, Gather]] = []  # what the ranks have not said yet whether they took it
        self._begun = False
        self._parked = False
        self._since = 0.0  # when the first of the open prompts was asked
        self._waited = 0.0
        self._wanted: set[int] = set()  # ranks whose text somebody waits for
        self._said: dict[int, str] = {}

    def park(self, *, looked_at: bool) -> None:
        """Ask nobody: prompts wait for ``cast``, or are refused where nobody looks."""
        self._front_end = None
        self._parked = looked_at

    @property
    def waited(self) -> float:
        """Seconds that ranks have waited for the user, which no timeout counts."""
        return self._waited + (time.monotonic() - self._since if self._open else 0.0)

    def waiting(self) -> dict[int, Prompt]:
        """Return each rank's oldest prompt that may be seen and is open."""
        with self._lock:
            oldest: dict[int, Prompt] = {}
            for (rank, _), prompt in sorted(self._open.items()):
                if not prompt.password:
                    oldest.setdefault(rank, prompt)
            return oldest

    def take(self, event: Event) -> None:
        """Note a prompt, or that a rank will have none any more."""
        if isinstance(event, Prompt):
            self._take_prompt(event)
        elif isinstance(event, RankJoined):
            with self._lock:
                self._running.add(event.rank)
        elif isinstance(event, RankDone | RankLeft):
            with self._lock:
                self._running.discard(event.rank)
                self._close([key for key in self._open if key[0] == event.rank])

    def tick(self) -> None:
        """Show the next prompt, or hand on its answer; called often."""
        self._look()
        if self._front_end is None:
            return
        self._say_what_came_too_late(self._front_end)
        if self._cast is not None and not self._cast_is_sent(self._front_end, self._cast):
            return
        asked = self._asked
        if asked is None or (asked.rank, asked.number) not in self._open:
            asked = self._asked = self._next()
            if asked is not None:
                self._front_end.say(self._renderer.fresh(asked.rank))
                self._front_end.ask(f"{label([asked.rank])} {asked.text}", password=asked.password)
        if asked is not None and (line := self._front_end.poll()) is not None:
            self._asked = None
            self._answer(self._front_end, asked, line)

    def withdraw(self) -> None:
        """Forget what is open: the ranks are being interrupted."""
        with self._lock:
            self._close(list(self._open))
            self._asked = self._cast = None

    def cast(self, ranks: Sequence[int], line: str) -> list[int]:
        """Answer the prompts of several ranks, and return those that have none."""
        there = self.waiting()
        for rank in ranks:
            if rank in there:
                self._send(there[rank], _typed(line))
        return [rank for rank in ranks if rank not in there]

    def look(self, ranks: Sequence[int], timeout: float) -> str:
        """Wait until ranks ask again or are done, and return what they have printed before they ask, labelled.

        What a rank at no prompt prints stays where its cell's output goes: how fast a rank is decides nothing.
        """
        with self._lock:
            self._lock.wait_for(lambda: not self._running & set(ranks) - set(self.waiting()), timeout)
            self._wanted |= set(ranks)
            self._lock.wait_for(lambda: not self._running or not self._wanted & set(ranks), timeout)
            return "".join(self._said.pop(rank, "") + self._state(rank) for rank in ranks)

    def _take_prompt(self, prompt: Prompt) -> None:
        if self._front_end is None and not self._parked:
            self._send(prompt, {"refused": NOBODY})
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

    def _answer(self, front_end: PromptFrontEnd, asked: Prompt, line: str) -> None:
        cast = None if asked.password else _CAST.fullmatch(line)
        if cast is None or cast[1]:
            self._send(asked, _typed(line[1:] if cast else line))
            return
        try:
            ranks = resolve(cast[2], self._session.n)
        except UsageError as error:
            front_end.say(f"{error}\n", "stderr")
            return
        self._cast = Cast(ranks, cast[3], cast[2] != "all", time.monotonic() + CAST_S)

    def _cast_is_sent(self, front_end: PromptFrontEnd, cast: Cast) -> bool:
        there = self.waiting()
        now = time.monotonic()
        late = [rank for rank in cast.ranks if rank in self._running and rank not in there]
        if any(now < (cast.until if cast.named else self._expected.get(rank, 0.0)) for rank in late):
            return False
        self._cast = None
        absent = self.cast(cast.ranks, cast.line)
        if absent and cast.named:
            verb = "is" if len(absent) == 1 else "are"
            front_end.say(f"{rank_list(absent)} {verb} not at a prompt and did not get {cast.line!r}\n", "stderr")
        return True

    def _send(self, prompt: Prompt, typed: Mapping[str, Any]) -> None:
        with self._lock:
            self._close([(prompt.rank, prompt.number)])
            self._expected[prompt.rank] = time.monotonic() + SETTLE_S
        answer = self._session.post("typed", [prompt.rank], {"number": prompt.number, **typed}, urgent=True)
        if self._front_end is not None:
            what = "the answer" if prompt.password else repr(typed.get("text", "the end of input"))
            with self._lock:
                self._sent.append((prompt, what, answer))

    def _say_what_came_too_late(self, front_end: PromptFrontEnd) -> None:
        """Tell of lines that found no question any more; a rank that is slow takes its line when it gets to it."""
        with self._lock:
            answered = [(prompt, what, answer.so_far()) for prompt, what, answer in self._sent]
            self._sent = [each for each, (*_, said) in zip(self._sent, answered, strict=True) if not said]
        for prompt, what, said in answered:
            if said and said[prompt.rank].get("taken") is False:
                front_end.say(f"{rank_list([prompt.rank])} no longer asks and did not get {what}\n", "stderr")

    def _close(self, keys: Sequence[tuple[int, int]]) -> None:
        was_open = bool(self._open)
        for key in keys:
            self._open.pop(key, None)
        if was_open and not self._open:
            self._waited += time.monotonic() - self._since
        self._lock.notify_all()

    def _look(self) -> None:
        """Hand out text to whoever waits in ``look``: only this thread touches the renderer."""
        if self._wanted:
            with self._lock:
                self._said.update({rank: self._renderer.fresh(rank) for rank in self._wanted & set(self.waiting())})
                self._wanted.clear()
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
