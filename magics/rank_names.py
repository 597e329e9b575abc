"""Completion, inspection and hints for names on the ranks; those of the notebook are left to IPython.

Hints in the notebook's own errors explain a NameError whose name exists on the ranks, and a mistyped magic. %debug
opens the debugger on the rank that failed, not in the code that raises the error again here.

Terms.
  rank cell   a cell whose first line of code is %%hvdrun, or a plain one with %hvdauto on
  offered     in a rank cell: names of a rank, keywords, builtins, the names that every rank has, and those of --push;
              no other names of the notebook, which would be NameErrors there
"""

from __future__ import annotations

import builtins
import keyword
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from IPython.core.error import UsageError as MagicError
from IPython.utils.tokenutil import token_at_cursor

from hvd_kernel.diagnosis import agreement
from hvd_kernel.errors import ClusterError, UsageError
from hvd_kernel.formatting.rank_labels import rank_list
from hvd_kernel.magics.commands.variables import agreement_of
from hvd_kernel.magics.context import Context
from hvd_kernel.magics.display.user_errors import USER_ERRORS, RankError
from hvd_kernel.magics.interrupts import Interrupted
from hvd_kernel.magics.options import HVDRUN, Options, nearest, parse, resolve
from hvd_kernel.magics.transform import MAGIC, first_of_code, plain

ANSWER_S = 0.2
"""Time limit for a rank's answer; without it there are local results only."""

HOVER_BYTES = 16 << 20
"""Size up to which an inspection compares the ranks' values."""

_READY = ("device", "hvd", "local_rank", "rank", "size")
_FIXED = sorted({*keyword.kwlist, *dir(builtins), *_READY})
_LAST_NAME = re.compile(r"(?<![\w.'\"])[^\W\d]\w*$")
_IMPORT = re.compile(r"\s*(import|from)\s")
_TYPES = "_jupyter_types_experimental"
Reply = dict[str, Any]


@dataclass(frozen=True)
class RankCell:
    """The code of a rank cell around the cursor."""

    before: str  # the text of the cursor's line, up to the cursor
    options: Options


class RankNames:
    """Answers to a front end's requests about names of the ranks."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def cell(self, code: str, cursor: int) -> RankCell | None:
        """Return the rank cell of this code, None if its names are the notebook's, as on the magic's line."""
        lines = code.splitlines(keepends=True)
        first = first_of_code(lines)
        if first is None:
            return None
        before = code[:cursor].splitlines(keepends=True) or [""]
        line = before[-1] if not before[-1].endswith("\n") else ""
        if _IMPORT.match(line):
            return None  # left to IPython's completion of modules: the ranks have the notebook's environment
        if lines[first].split()[0] == MAGIC:
            on_magic = len(before) == first + 1 and line != ""
            return None if on_magic else RankCell(line, _options(lines[first].strip().removeprefix(MAGIC)))
        return RankCell(line, Options()) if self._context.transformer.auto and plain(lines[first]) else None

    def complete(self, cell: RankCell, cursor: int) -> Reply:
        """Return the content of a complete_reply."""
        length, kinds = self.matching(cell.before, cell.options.ranks)
        if at := _LAST_NAME.search(cell.before):
            local = [name for name in (*cell.options.push, *_FIXED) if name.startswith(at[0])]
            length, kinds = len(at[0]), {**dict.fromkeys(local, ""), **kinds}
        matches = sorted(kinds, key=lambda name: (name in _FIXED, name.startswith("_"), name))
        start = cursor - length
        typed = [{"text": name, "type": kinds[name], "start": start, "end": cursor} for name in matches]
        return {
            "status": "ok",
            "matches": matches,
            "cursor_start": start,
            "cursor_end": cursor,
            "metadata": {_TYPES: typed},
        }

    def matching(self, text: str, ranks: str = "all") -> tuple[int, dict[str, str]]:
        """Query a rank for completions of a text; return the characters that they replace, and completion -> kind."""
        for content in self._query("complete", {"text": text}, ranks, only_first=True).values():
            return content["length"], dict(content["items"])
        return 0, {}

    def inspect(self, code: str, cursor: int, cell: RankCell, detail: int) -> Reply:
        """Return the content of an inspect_reply."""
        chain = token_at_cursor(code, cursor)
        answers = self._query("inspect", {"chain": chain, "detail": detail}, cell.options.ranks, only_first=True)
        fields = [tuple(field) for content in answers.values() for field in content.get("fields", ())]
        if not fields:
            return {"status": "ok", "found": False, "data": {}, "metadata": {}}
        text = described(fields, self._rows(chain, cell.options.ranks))
        return {"status": "ok", "found": True, "data": {"text/plain": text}, "metadata": {}}

    def local(self, code: str, cursor: int, cell: RankCell) -> bool:
        """Return whether the notebook describes a name of a rank cell: it is pushed, or no ranks run yet."""
        head = token_at_cursor(code, cursor).partition(".")[0]
        return self._context.manager.session is None or head in cell.options.push

    def hint(self, error: BaseException) -> str:
        """Return the hint for a NameError whose name exists on ranks; "" if no rank has it."""
        name = getattr(error, "name", None)
        answers = self._query("known", {"names": [name]}, "all") if name else {}
        holders = [rank for rank, content in answers.items() if name in content["known"]]
        if not holders:
            return ""
        place = "the ranks" if len(holders) == len(answers) else rank_list(holders)
        return f"`{name}` exists on {place}, not in the notebook: %hvdpull {name}, or begin the cell with %%hvdrun"

    def _rows(self, chain: str, ranks: str) -> dict[int, Mapping[str, Any]]:
        session = self._context.manager.session
        question = {"names": [chain], "compare": HOVER_BYTES}
        answers = self._query("variables", question, ranks, urgent=session is not None and session.running)
        return {rank: content["rows"][chain] for rank, content in answers.items() if chain in content["rows"]}

    def _query(
        self, handler: str, content: dict[str, Any], ranks: str, *, only_first: bool = False, urgent: bool = True
    ) -> dict[int, Mapping[str, Any]]:
        """Return the ranks' answers; {} without ranks, or if none answers in time."""
        session = self._context.manager.session
        if session is None:
            return {}
        try:
            chosen: Sequence[int] = [r for r in resolve(ranks, session.n) if r not in session.dead]
            queried = chosen[:1] if only_first else chosen
            answers = session.ask(handler, queried, content, timeout=ANSWER_S, urgent=urgent) if queried else {}
        except (ClusterError, UsageError):
            return {}
        return {rank: content for rank, (content, _) in answers.items()}


def described(fields: Iterable[tuple[str, str]], rows: Mapping[int, Mapping[str, Any]]) -> str:
    """Return an inspection as text: class or signature, then the value and which ranks agree, then the rest. Pure."""
    (title, text), *rest = fields
    value = [(title, text)]
    if rows and title == "Type":
        row = next(iter(rows.values()))
        value.append(("Value", " ".join(filter(None, (row["dtype"], row["shape"], row["value"])))))
        value.append(("Ranks", agreement_of(rows) or agreement.difference({r: repr(row) for r, row in rows.items()})))
    return "\n".join(_field(title, text) for title, text in (*value, *rest) if text)


def _field(title: str, text: str) -> str:
    return f"{title + ':':<11} {text}" if "\n" not in text else f"{title}:\n{text}"


def _options(line: str) -> Options:
    try:
        return parse(MAGIC, HVDRUN, line)
    except UsageError:  # the line is incomplete
        return Options()


_HINTED = (NameError, MagicError)
_NO_MAGIC = re.compile(r"(?:Cell magic|Line magic function) `(%{1,2})(\w+)` not found")
_OURS = "hvd"

NO_FRAME = (
    "%debug: the last error is a message of hvd_kernel's, not an exception of your code: there is no frame to show"
)


def install_hints(shell: Any, names: RankNames) -> None:
    """Add the hints to the errors that IPython shows, unless the user has set a handler."""

    def shown(shell: Any, kind: Any, error: BaseException, where: TracebackType, tb_offset: int | None = None) -> Any:
        if isinstance(error, MagicError):
            _name_nearest(shell, error)
        elif hint := "" if own_traceback(error) else names.hint(error):
            error.add_note(hint)
        shell.showtraceback((kind, error, where), tb_offset=tb_offset)

    if not shell.custom_exceptions:
        shell.set_custom_exc(_HINTED, shown)
    vars(shell)["debugger"] = _debugger(shell)


def uninstall_hints(shell: Any) -> None:
    """Remove the hints, unless the user has set a handler since."""
    if shell.custom_exceptions == _HINTED:
        shell.set_custom_exc((), None)
    vars(shell).pop("debugger", None)


def _debugger(shell: Any) -> Callable[..., None]:
    """Return the function that %debug and %pdb call."""
    original = shell.debugger

    def debugger(force: bool = False) -> None:
        error = getattr(sys, "last_value", None)
        if isinstance(error, RankError) and (force or shell.call_pdb):
            shell.run_line_magic("hvddebug", "")
        elif isinstance(error, (*USER_ERRORS, Interrupted)) and own_traceback(error):
            sys.stderr.write(f"{NO_FRAME}\n" * (not shell.call_pdb))
        else:
            original(force=force)

    return debugger


def own_traceback(error: BaseException) -> bool:
    """Return whether an error has its own traceback; a rank's error has its hint already."""
    return hasattr(error, "_render_traceback_")


def _name_nearest(shell: Any, error: MagicError) -> None:
    """Suggest our most similar magic for one that does not exist, unless IPython has a suggestion."""
    missing = _NO_MAGIC.fullmatch(str(error).rstrip("."))
    if missing:
        percent, name = missing.groups()
        table = shell.magics_manager.magics["cell" if len(percent) > 1 else "line"]
        near = nearest(f"{percent}{name}", [f"{percent}{magic}" for magic in table if magic.startswith(_OURS)])
        error.args = (f"{missing[0]}{near or '.'}",)
