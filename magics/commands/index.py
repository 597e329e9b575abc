"""The magics: the table from which options, help and completion are generated, and its registration in IPython.

A new magic is a row of this table and a function in the file of its concept beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

from IPython.core.magic import no_var_expand

from hvd_kernel.magics import options as flags
from hvd_kernel.magics.commands import background, hvdrun, inspection, table, variables
from hvd_kernel.magics.commands.table import (
    SUBCOMMANDS,
    Completer,
    Names,
    choices,
    every_job,
    notebook_variables,
    nothing,
    rank_variables,
    running_jobs,
)
from hvd_kernel.magics.context import Context
from hvd_kernel.magics.display.user_errors import user_errors
from hvd_kernel.magics.jobs import Jobs
from hvd_kernel.magics.options import MagicFlag, Options, filled, parse, parse_leading
from hvd_kernel.magics.rank_names import RankNames


@dataclass(frozen=True)
class Magic:
    """One row of the table."""

    name: str  # with its % or %%
    act: Callable[..., Any]  # (context, options), of a cell magic (context, options, cell)
    line: str  # the usage after its name
    help: str  # in one line
    flags: tuple[MagicFlag, ...] = ()
    more: str = ""  # examples and explanations, for %name?
    completes: Completer = nothing  # of the arguments other than flags
    text: bool = False  # the rest of the line is text
    such_as: str = ""  # the same with example values, if the line has placeholders

    @property
    def is_cell(self) -> bool:
        """True for a cell magic."""
        return self.name.startswith("%%")

    @property
    def usage(self) -> str:
        """The usage."""
        return f"{self.name} {self.line}".rstrip()

    @property
    def example(self) -> str:
        """A line that works as it is."""
        return f"{self.name} {self.such_as or self.line}".rstrip()

    def parse(self, line: str) -> Options:
        """Return the options of a line.

        Raises
        ------
        UsageError
            Naming the wrong part and the correct usage.
        """
        return (parse_leading if self.text else parse)(self.name, self.flags, line)

    def doc(self) -> str:
        """Return its help, as %name? shows it."""
        width = max((len(flag.usage()) for flag in self.flags), default=0)
        listed = "\n".join(f"    {flag.usage().ljust(width)}  {flag.full_help()}" for flag in self.flags)
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
        hvdrun.RUN_HELP,
    ),
    Magic(
        "%hvd",
        table.hvd,
        "SUBCOMMAND",
        "start, inspect and stop the ranks; %hvd alone is %hvd status",
        _HVD,
        table.usage(),
        choices(*table.SUBCOMMANDS),
        such_as="start -np 4",
    ),
    Magic(
        "%hvdpush",
        variables.push,
        "a b",
        "copy variables from the notebook to the ranks",
        flags.RANKS + flags.FORCE,
        completes=notebook_variables,
    ),
    Magic(
        "%hvdpull",
        variables.pull,
        "a b",
        "copy variables from the ranks to the notebook",
        flags.RANKS + flags.FORCE,
        variables.PULL_HELP,
        rank_variables,
    ),
    Magic(
        "%hvdauto",
        hvdrun.auto,
        "on|off",
        "run every cell without a magic on the ranks",
        completes=choices(*hvdrun.SWITCH),
        such_as="on",
    ),
    Magic(
        "%hvdlogs",
        background.logs,
        "--cell 7",
        "show what ranks have printed, from their log files",
        flags.RANKS + flags.LOGS,
        background.LOGS_HELP,
    ),
    Magic(
        "%hvdjobs",
        background.jobs,
        "[NAME ...]",
        "list the background jobs, or show the output of one",
        flags.WAIT,
        background.JOBS_HELP,
        every_job,
        such_as="train",
    ),
    Magic(
        "%hvdcancel",
        background.cancel,
        "NAME|all",
        "interrupt a job; variables are kept",
        completes=running_jobs,
        such_as="train",
    ),
    Magic(
        "%hvdpdb",
        inspection.pdb,
        "[--ranks 0,2] n",
        "send a line to ranks at a prompt",
        flags.ONE_RANK,
        inspection.PDB_HELP,
        text=True,
        such_as="--ranks 0,2 n",
    ),
    Magic(
        "%hvddebug",
        inspection.debug,
        "[--rank 1]",
        "open the debugger where a rank's last cell failed, by default on the first to fail",
        flags.ONE_RANK,
        such_as="--rank 1",
    ),
)
MAGICS = {magic.name: replace(magic, flags=magic.flags + flags.HELP) for magic in _ROWS}


def register(context: Context) -> None:
    """Register every magic, as a function that IPython calls with a line, a cell magic also with the cell."""
    manager = context.shell.magics_manager
    for magic in MAGICS.values():
        kind = "cell" if magic.is_cell else "line"
        manager.register_function(_function(magic, context), kind, magic.name.strip("%"))


def unregister(context: Context) -> None:
    """Remove the magics from IPython's tables; it has no function for that."""
    for magics in context.shell.magics_manager.magics.values():
        for magic in MAGICS.values():
            magics.pop(magic.name.strip("%"), None)


def _function(magic: Magic, context: Context) -> Callable[..., Any]:
    def run(line: str, *cell: str) -> Any:
        with user_errors():
            options = magic.parse(line if magic.text else filled(line, context.shell.user_ns))
            if options.help:
                context.writer().write(_help(magic, options))
                return None
        return magic.act(context, options, *cell)

    run.__name__ = run.__qualname__ = magic.name.strip("%")
    run.__doc__ = magic.doc()
    vars(run)["__wrapped__"] = magic.act  # %name? shows its file
    no_var_expand(run)
    return run


def _help(magic: Magic, options: Options) -> str:
    """Return the text of ``--help``, of a sub-command of %hvd its own."""
    if magic.name == "%hvd" and options.arguments:
        return table.find(options).help()
    return magic.doc()


def install_completion(shell: Any, names: RankNames, jobs: Jobs) -> None:
    """Register with IPython's completer, for lines that start with one of our magics."""

    def local(symbol: str) -> list[str]:
        return [name for name in shell.user_ns if name.startswith(symbol) and not name.startswith("_")]

    sources = Names(
        ranks=lambda symbol: list(names.matching(symbol)[1]),
        notebook=local,
        jobs=lambda: [job.name for job in jobs],
        running=lambda: [job.name for job in jobs if not job.ended.is_set()],
    )
    for magic in MAGICS:
        shell.set_hook("complete_command", partial(_complete, sources), str_key=magic)


def uninstall_completion(shell: Any) -> None:
    """Remove the completers from IPython's table; it has no function for that."""
    for magic in MAGICS:
        shell.strdispatchers["complete_command"].strs.pop(magic, None)


def _complete(names: Names, _completer: object, event: SimpleNamespace) -> list[str]:
    magic = MAGICS[event.command]
    options = [spelling for flag in magic.flags for spelling in flag.spellings]
    if event.symbol.startswith("-"):
        return options
    head = event.line[: len(event.line) - len(event.symbol)].split()
    subcommand = SUBCOMMANDS.get(head[1]) if event.command == "%hvd" and len(head) > 1 else None
    matches = (magic if subcommand is None else subcommand).completes(names, event.symbol)
    return matches or (options if not event.symbol else [])
