"""%hvdpdb: lines for ranks that wait at a prompt. %hvddebug: the debugger where a rank's last cell failed."""

from __future__ import annotations

import re
import sys

from IPython.core.magic import line_magic, magics_class, no_var_expand

from hvd_kernel.errors import UsageError
from hvd_kernel.formatting.rank_labels import named
from hvd_kernel.magics.commands.hvdrun import drive
from hvd_kernel.magics.context import DeskMagics
from hvd_kernel.magics.display.rank_failures import RankError
from hvd_kernel.magics.display.user_error import plain_errors
from hvd_kernel.magics.options import Options, parse, resolve
from hvd_kernel.magics.shell.prompts import Prompts

LOOK_S = 3.0
"""How long %hvdpdb waits for ranks to come to their next prompt."""

POST_MORTEM = "%debug"
"""The cell that %hvddebug runs: a rank keeps its last exception for it (worker/debugger.py)."""

_OPTION = re.compile(r"\s*((?:--ranks?|--targets|-t)(?:=|\s+)\S+)?\s?(.*)")
_NO_PROMPT = "%hvdpdb: no rank waits at a prompt: breakpoint() or input() in a cell opens one"


@magics_class
class DebugMagics(DeskMagics):
    """The line magics for debugging ranks."""

    @no_var_expand
    @line_magic
    def hvdpdb(self, line: str) -> None:
        """Send a line to ranks at a prompt: %hvdpdb [--ranks 0,2] n. Without a line: who waits, and at what.

        For prompts of jobs (%%hvdrun --bg), and from a subshell. Under a cell that runs, answer at its prompt; there
        ``@0,2 n`` and ``@all n`` are for several ranks.
        """
        with plain_errors():
            options, text = split(line)
            prompts = self.desk.holder.prompts
            there = prompts.waiting() if prompts is not None else {}
            if prompts is None or not there:
                raise UsageError(_NO_PROMPT)
            ranks = resolve(options.ranks, self.desk.holder.current().n) if options.ranks != "all" else tuple(there)
            if absent := sorted(set(ranks) - set(there)):
                raise UsageError(f"%hvdpdb: no prompt on {named(absent)}: choose from {named(there)}")
            self._talk(prompts, ranks, text)

    @no_var_expand
    @line_magic
    def hvddebug(self, line: str) -> None:
        """Open the debugger where a rank's last cell failed: %hvddebug [--rank 1]. By default on the first to fail."""
        with plain_errors():
            options = parse("%hvddebug", line)
            with self.desk.holder.use():
                session = self.desk.holder.current()
                ranks = (failed_rank(),) if options.ranks == "all" else resolve(options.ranks, session.n)
                watch, _, _ = drive(session, self.desk.holder, self.desk.screen(), POST_MORTEM, ranks)
                watch.check(lambda _name: False)

    def _talk(self, prompts: Prompts, ranks: tuple[int, ...], text: str) -> None:
        if text:
            prompts.cast(ranks, text)
        self.desk.screen().say(prompts.look(ranks, LOOK_S))


def split(line: str) -> tuple[Options, str]:
    """Separate the ranks, which come first, from the text, which is sent as it is."""
    found = _OPTION.fullmatch(line)
    head, text = (found[1] or "", found[2]) if found else ("", line)
    return parse("%hvdpdb", head), text


def failed_rank() -> int:
    """Return the rank that the last error in this notebook names.

    Raises
    ------
    UsageError
        If the last error is not of a rank.
    """
    error = getattr(sys, "last_value", None)
    if not isinstance(error, RankError):
        raise UsageError("%hvddebug: the last error here is not of a rank: say which, as in %hvddebug --rank 1")
    return error.rank
