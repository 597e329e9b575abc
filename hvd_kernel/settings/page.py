"""The page of settings, docs/knobs.md: written from the tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hvd_kernel.settings.core import CORE_SETTINGS
from hvd_kernel.settings.horovod import HOROVOD_VALUES, UNUSED
from hvd_kernel.settings.notebook import NOTEBOOK_SETTINGS
from hvd_kernel.settings.package import PACKAGE_SETTINGS
from hvd_kernel.settings.setting import Setting

_HEAD = """# Settings

Written by `python -m hvd_kernel.settings` from the tables in `hvd_kernel/settings/`; a test compares them.

A setting is said in one of three places; what is said later in this list wins:

1. a variable of the environment (of several in one row the first that is set; an empty value is the same as none),
2. a Jupyter configuration file, for notebooks: `c.HvdKernel.ranks = 4` in `ipython_kernel_config.py` (the kernel) or
   `ipython_config.py` (any IPython with `%load_ext hvd_kernel`), or `--HvdKernel.ranks=4` on the kernel's command line,
3. an option of the cell or of `%hvd start`, where there is one.

An empty default is the core's choice. The core's settings are read when `init()` is called. A value that cannot be
used is a `ConfigError` that names the variable or the traitlet, its value, and what is wanted.
"""

_VALUES = """What an image of Horovod's left in the environment does not stop `init()`. Where something else than asked
for is done, rank 0 says so, once.
"""

_HEADING = ("variables", "in a configuration file", "default")


def page() -> str:
    """Return the text of docs/knobs.md."""
    values = ((_code(row.variables), row.taken, row.rest) for row in HOROVOD_VALUES)
    unused = ((_code(row.variables), row.why) for row in UNUSED)
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
            _table(("variables", "taken as it stands", "the rest"), values),
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
