"""Completion, inspection and hints for names that live on the ranks. The notebook's own namespace is left alone.

Terms.
  rank cell   a cell whose first line of code is %%hvdrun, or a plain one with %hvdauto on
  offered     in a rank cell: what a rank knows, keywords, builtins and what is ready on every rank, and what --push
              brings; no other local names, which would be NameErrors there
"""

from __future__ import annotations

import builtins
import keyword
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from IPython.utils.tokenutil import token_at_cursor

from hvd_kernel.diagnosis import agreement
from hvd_kernel.errors import ClusterError, UsageError
from hvd_kernel.formatting.rank_labels import rank_list
from hvd_kernel.magics.commands.subcommands.variables import word
from hvd_kernel.magics.context import Context
from hvd_kernel.magics.flags import HVDRUN
from hvd_kernel.magics.options import Options, parse, resolve
from hvd_kernel.magics.shell.transform import MAGIC, first_of_code, plain

ANSWER_S = 0.2
"""How long a rank may take; afterwards there are local results only."""

HOVER_BYTES = 16 << 20
"""Up to this size, values are compared when somebody only points at them."""

_READY = ("device", "hvd", "local_rank", "rank", "size")
_FIXED = sorted({*keyword.kwlist, *dir(builtins), *_READY})
_LAST_NAME = re.compile(r"(?<![\w.'\"])[^\W\d]\w*$")
_IMPORT = re.compile(r"\s*(import|from)\s")
_TYPES = "_jupyter_types_experimental"
Reply = dict[str, Any]


@dataclass(frozen=True)
class RankCell:
    """The code of a rank cell around the cursor."""

    before: str  # the text of the cursor's line, up to it
    options: Options


class RankNames:
    """What a front end asks about names, answered by the ranks where they are meant."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def cell(self, code: str, cursor: int) -> RankCell | None:
        """Return the rank cell that this is, None where names are the notebook's own: also on the magic's line."""
        lines = code.splitlines(keepends=True)
        first = first_of_code(lines)
        if first is None:
            return None
        before = code[:cursor].splitlines(keepends=True) or [""]
        line = before[-1] if not before[-1].endswith("\n") else ""
        if _IMPORT.match(line):
            return None  # IPython's own completion of modules: the ranks' environment is the notebook's
        if lines[first].split()[0] == MAGIC:
            on_magic = len(before) == first + 1 and line != ""
            return None if on_magic else RankCell(line, _options(lines[first].strip().removeprefix(MAGIC)))
        return RankCell(line, Options()) if self._context.transformer.auto and plain(lines[first]) else None

    def complete(self, cell: RankCell, cursor: int) -> Reply:
        """Return the content of a complete_reply."""
        found = self.matching(cell.before, cell.options.ranks)
        if at := _LAST_NAME.search(cell.before):
            local = [name for name in (*cell.options.push, *_FIXED) if name.startswith(at[0])]
            found = len(at[0]), {**dict.fromkeys(local, ""), **found[1]}
        length, kinds = found
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
        """Ask a rank what can stand at the end of a text: characters that it replaces, completion -> kind."""
        for content in self._ask("complete", {"text": text}, ranks, only_first=True).values():
            return content["length"], dict(content["items"])
        return 0, {}

    def inspect(self, code: str, cursor: int, cell: RankCell, detail: int) -> Reply:
        """Return the content of an inspect_reply."""
        chain = token_at_cursor(code, cursor)
        said = self._ask("inspect", {"chain": chain, "detail": detail}, cell.options.ranks, only_first=True)
        fields = [tuple(field) for content in said.values() for field in content.get("fields", ())]
        if not fields:
            return {"status": "ok", "found": False, "data": {}, "metadata": {}}
        text = described(fields, self._rows(chain, cell.options.ranks))
        return {"status": "ok", "found": True, "data": {"text/plain": text}, "metadata": {}}

    def local(self, code: str, cursor: int, cell: RankCell) -> bool:
        """Whether the notebook itself describes a name of a rank cell: it is pushed, or no ranks are there yet."""
        head = token_at_cursor(code, cursor).partition(".")[0]
        return self._context.manager.session is None or head in cell.options.push

    def hint(self, error: BaseException) -> str:
        """Return where the name of a NameError lives; "" where no rank has it."""
        name = getattr(error, "name", None)
        known = self._ask("known", {"names": [name]}, "all") if name else {}
        there = [rank for rank, content in known.items() if name in content["known"]]
        if not there:
            return ""
        place = "the ranks" if len(there) == len(known) else rank_list(there)
        return f"`{name}` exists on {place}, not in the notebook: %hvdpull {name}, or begin the cell with %%hvdrun"

    def _rows(self, chain: str, ranks: str) -> dict[int, Mapping[str, Any]]:
        session = self._context.manager.session
        asked = {"names": [chain], "compare": HOVER_BYTES}
        answers = self._ask("variables", asked, ranks, urgent=session is not None and session.running)
        return {rank: content["rows"][chain] for rank, content in answers.items() if chain in content["rows"]}

    def _ask(
        self, handler: str, content: dict[str, Any], ranks: str, *, only_first: bool = False, urgent: bool = True
    ) -> dict[int, Mapping[str, Any]]:
        """Return the ranks' answers; {} where there are no ranks, or none that answers soon."""
        session = self._context.manager.session
        if session is None:
            return {}
        try:
            chosen: Sequence[int] = [r for r in resolve(ranks, session.n) if r not in session.dead]
            asked = chosen[:1] if only_first else chosen
            answers = session.ask(handler, asked, content, timeout=ANSWER_S, urgent=urgent) if asked else {}
        except (ClusterError, UsageError):
            return {}
        return {rank: content for rank, (content, _) in answers.items()}


def described(fields: Iterable[tuple[str, str]], rows: Mapping[int, Mapping[str, Any]]) -> str:
    """Write an inspection: the class or signature first, then the value and which ranks agree, then the rest. Pure."""
    (title, text), *rest = fields
    value = [(title, text)]
    if rows and title == "Type":
        one = next(iter(rows.values()))
        value.append(("Value", " ".join(filter(None, (one["dtype"], one["shape"], one["value"])))))
        value.append(("Ranks", word(rows) or agreement.difference({r: repr(row) for r, row in rows.items()})))
    return "\n".join(_field(*each) for each in (*value, *rest) if each[1])


def _field(title: str, text: str) -> str:
    return f"{title + ':':<11} {text}" if "\n" not in text else f"{title}:\n{text}"


def _options(line: str) -> Options:
    try:
        return parse(MAGIC, HVDRUN, line)
    except UsageError:  # it is being written
        return Options()
