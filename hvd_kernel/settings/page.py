"""The page that documents the tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hvd_kernel.settings.elsewhere import ELSEWHERE
from hvd_kernel.settings.idle import IDLE
from hvd_kernel.settings.lenient import LENIENT
from hvd_kernel.settings.table import SETTINGS

_HEAD = """# Settings from the environment

Written by `python -m hvd_kernel.settings` from the tables in `hvd_kernel/settings/`; a test compares them.
They are read when `init()` is called. Of several variables in one row the first that is set wins; an empty value is
the same as none, an empty default is the core's choice. A value that cannot be used is a `ConfigError` that names the
variable, the value and what is wanted.
"""

_LENIENT = """What an image of Horovod's left in the environment does not stop `init()`. Where something else than asked
for is done, rank 0 says so, once.
"""


def page() -> str:
    """Return the text of docs/knobs.md."""
    settings = ((_code(row.variables), _code([row.default]), f"`{row.key}`", row.doc) for row in SETTINGS)
    elsewhere = ((_code(row.variables), _code([row.default]), row.doc) for row in ELSEWHERE)
    lenient = ((_code(row.variables), row.taken, row.rest) for row in LENIENT)
    idle = ((_code(row.variables), row.why) for row in IDLE)
    return "\n".join(
        [
            _HEAD,
            "## Settings of the core\n",
            _table(("variables", "default", "key", "meaning"), settings),
            "## Settings of other parts\n",
            _table(("variables", "default", "meaning"), elsewhere),
            "## Read leniently\n",
            _LENIENT,
            _table(("variables", "taken as it stands", "the rest"), lenient),
            "## Without effect here\n",
            _table(("variables", "why"), idle),
        ]
    )


def _code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names if name)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
