"""The page of the magics, docs/magics.md: written from their tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hvd_kernel.magics.commands.index import MAGICS, Magic
from hvd_kernel.magics.commands.subcommands.table import SUBCOMMANDS
from hvd_kernel.magics.flags import HELP

_HEAD = """# Magics

Written by `python -m hvd_kernel.magics` from the tables in `magics/commands/index.py` and
`magics/commands/subcommands/table.py`; a test compares them. The same is shown by `%hvd?`, `%%hvdrun?`, and
by `--help` behind any of them: `%hvd start --help`.
[Working in the notebook](notebook.md) says when to use which. A line that is written wrongly raises `UsageError`, which
names the part and says how the magic is written; it does nothing then.
"""

_COLUMNS = ("what is typed", "what it does", "for example")


def page() -> str:
    """Return the text of docs/magics.md."""
    magics = [(_code(magic.usage), magic.help, _code(magic.example)) for magic in MAGICS.values()]
    subcommands = [(_code(each.usage), each.doc, _code(each.example)) for each in SUBCOMMANDS.values()]
    parts = [
        _HEAD,
        _table(_COLUMNS, magics),
        "## Sub-commands of %hvd\n",
        _table(_COLUMNS, subcommands),
        *(_flags(magic) for magic in MAGICS.values() if magic.flags != HELP),
    ]
    return "\n".join(parts)


def _flags(magic: Magic) -> str:
    rows = [(_code(flag.usage()), flag.told()) for flag in magic.flags if flag not in HELP]
    return f"## Options of {magic.name}\n\n{_table(('option', 'what it does'), rows)}"


def _code(text: str) -> str:
    return f"`{text}`".replace("|", r"\|")


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
