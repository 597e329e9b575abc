"""The magics: one table, from which registration, options, help and completion are made.

A new magic is a row of this table and a function in a file of its own beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from hvd_kernel.magics import flags
from hvd_kernel.magics.commands import hvdauto, hvdjobs, hvdlogs, hvdpdb, hvdpull, hvdrun
from hvd_kernel.magics.commands.hvd import hvd
from hvd_kernel.magics.commands.hvdcancel import cancel
from hvd_kernel.magics.commands.hvddebug import debug
from hvd_kernel.magics.commands.hvdpush import push
from hvd_kernel.magics.commands.subcommands import table
from hvd_kernel.magics.flags import MagicFlag
from hvd_kernel.magics.options import Options, parse, parse_leading
from hvd_kernel.magics.shell.completers import (
    Completer,
    choices,
    every_job,
    notebook_variables,
    nothing,
    rank_variables,
    running_jobs,
)


@dataclass(frozen=True)
class Magic:
    """One row."""

    name: str  # with its % or %%
    act: Callable[..., Any]  # (context, options), of a cell magic (context, options, cell)
    line: str  # what follows its name, as it is written
    help: str  # in one line
    flags: tuple[MagicFlag, ...] = ()
    more: str = ""  # examples and explanations, for %name?
    completes: Completer = nothing  # what may follow besides flags
    text: bool = False  # the line's rest is text
    such_as: str = ""  # the same with values, where the line has names for them

    @property
    def is_cell(self) -> bool:
        """True for a cell magic."""
        return self.name.startswith("%%")

    @property
    def usage(self) -> str:
        """How it is written."""
        return f"{self.name} {self.line}".rstrip()

    @property
    def example(self) -> str:
        """A line that can be typed as it stands."""
        return f"{self.name} {self.such_as or self.line}".rstrip()

    def parse(self, line: str) -> Options:
        """Return what a line says.

        Raises
        ------
        UsageError
            Naming what is wrong and how the magic is written.
        """
        return (parse_leading if self.text else parse)(self.name, self.flags, line)

    def doc(self) -> str:
        """Return its help: what %name? shows."""
        width = max((len(flag.usage()) for flag in self.flags), default=0)
        listed = "\n".join(f"    {flag.usage().ljust(width)}  {flag.told()}" for flag in self.flags)
        options = f"Options:\n\n{listed}" if listed else ""
        example = f"For example:\n\n    {self.example}" if self.such_as else ""
        parts = [f"{self.help[:1].upper()}{self.help[1:]}.", f"    {self.usage}", example, self.more.rstrip(), options]
        return "\n\n".join(part for part in parts if part) + "\n"


_HVD = (
    *flags.WHERE,
    *flags.RANKS,
    *flags.RESPAWN,
    *flags.FORCE,
    *flags.STRICT,
    *flags.DRY_RUN,
    *flags.KEEP,
    *flags.KEPT,
    *flags.TRACK,
    *flags.TIMELINE,
)
_ROWS = (
    Magic(
        "%%hvdrun",
        hvdrun.run,
        "-np 4",
        "run the cell on every rank; the first use starts them",
        flags.HVDRUN,
        hvdrun.MORE,
    ),
    Magic(
        "%hvd",
        hvd,
        "SUBCOMMAND",
        "start, watch and end the ranks; %hvd alone is %hvd status",
        _HVD,
        table.usage(),
        choices(*table.SUBCOMMANDS),
        such_as="start -np 4",
    ),
    Magic(
        "%hvdpush",
        push,
        "a b",
        "copy variables from the notebook to the ranks",
        flags.RANKS + flags.FORCE,
        completes=notebook_variables,
    ),
    Magic(
        "%hvdpull",
        hvdpull.pull,
        "a b",
        "copy variables from the ranks to the notebook",
        flags.RANKS + flags.FORCE,
        hvdpull.MORE,
        rank_variables,
    ),
    Magic(
        "%hvdauto",
        hvdauto.auto,
        "on|off",
        "run every cell that has no magic of its own on the ranks",
        completes=choices(*hvdauto.SWITCH),
        such_as="on",
    ),
    Magic(
        "%hvdlogs",
        hvdlogs.logs,
        "--cell 7",
        "show what ranks have printed, from their log files",
        flags.RANKS + flags.LOGS,
        hvdlogs.MORE,
    ),
    Magic(
        "%hvdjobs",
        hvdjobs.jobs,
        "[NAME ...]",
        "list the background jobs, or show the output of one",
        flags.WAIT,
        hvdjobs.MORE,
        every_job,
        such_as="train",
    ),
    Magic(
        "%hvdcancel",
        cancel,
        "NAME|all",
        "interrupt a job; variables are kept",
        completes=running_jobs,
        such_as="train",
    ),
    Magic(
        "%hvdpdb",
        hvdpdb.pdb,
        "[--ranks 0,2] n",
        "send a line to ranks at a prompt",
        flags.ONE_RANK,
        hvdpdb.MORE,
        text=True,
        such_as="--ranks 0,2 n",
    ),
    Magic(
        "%hvddebug",
        debug,
        "[--rank 1]",
        "open the debugger where a rank's last cell failed, by default on the first to fail",
        flags.ONE_RANK,
        such_as="--rank 1",
    ),
)
MAGICS = {magic.name: replace(magic, flags=magic.flags + flags.HELP) for magic in _ROWS}
