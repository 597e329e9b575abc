"""Page of settings, generated from the tables: ``python -m hvd_kernel.settings > docs/knobs.md``."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from hvd_kernel.settings.core import CORE_SETTINGS
from hvd_kernel.settings.horovod import HOROVOD_VALUES, UNUSED
from hvd_kernel.settings.setting import Setting
from hvd_kernel.settings.table import NOTEBOOK_SETTINGS, PACKAGE_SETTINGS

_HEAD = """# Settings

Written by `python -m hvd_kernel.settings` from the tables in `hvd_kernel/settings/`; a test compares them.

A setting can be made in three places; the last one in this list wins:

1. an environment variable (of several in one row the first that is set; an empty value counts as not set),
2. a Jupyter configuration file, for notebooks: `c.HvdKernel.ranks = 4` in `ipython_kernel_config.py` (the kernel) or
   `ipython_config.py` (any IPython with `%load_ext hvd_kernel`), or `--HvdKernel.ranks=4` on the kernel's command line,
3. an option of the cell or of `%hvd start`, if there is one.

With an empty default the core chooses. `init()` reads the core's settings. A value that cannot be used raises a
`ConfigError` with the variable or the traitlet, its value, and the expected form.
"""

_VALUES = """Values that an image of Horovod sets in the environment do not stop `init()`. Rank 0 logs substituted
values once.
"""

_HEADING = ("variables", "in a configuration file", "default")


def page() -> str:
    """Return the text of docs/knobs.md."""
    values = ((_code(row.variables), row.taken, row.rest) for row in HOROVOD_VALUES)
    unused = ((_code(row.variables), row.reason) for row in UNUSED)
    core = ((*_names(row), f"`{row.key}`", row.doc) for row in CORE_SETTINGS)
    return "\n".join(
        [
            _HEAD,
            "## Settings of a notebook\n",
            _table((*_HEADING, "option", "meaning"), map(_row, NOTEBOOK_SETTINGS)),
            "## Settings of the core\n",
            _table((*_HEADING, "key", "meaning"), core),
            "## Settings of the package\n",
            _table((*_HEADING, "option", "meaning"), map(_row, PACKAGE_SETTINGS)),
            "## Horovod's values\n",
            _VALUES,
            _table(("variables", "read unchanged", "other values"), values),
            "## Without effect here\n",
            _table(("variables", "why"), unused),
        ]
    )


def _row(row: Setting) -> tuple[str, ...]:
    return (*_names(row), _code([row.flag]), row.doc)


def _names(row: Setting) -> tuple[str, str, str]:
    trait = f"`{row.trait}` ({row.check.type})" if row.trait else ""
    return _code(row.variables), trait, _code([row.default])


def _code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names if name)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    sys.stdout.write(page())
