"""Sub-commands of %hvd: the table from which its help, completion and errors are generated, and %hvd itself.

A new sub-command is a row of this table and a function in the file of its concept beside it. The completers here are
also for the rows of the magics.

Terms.
  symbol    the part of a name typed so far
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

from hvd_kernel.errors import UsageError
from hvd_kernel.magics.commands import inspection, lifecycle, records, variables
from hvd_kernel.magics.commands.clean import clean
from hvd_kernel.magics.commands.inspection import timeline
from hvd_kernel.magics.commands.variables import check
from hvd_kernel.magics.context import Context
from hvd_kernel.magics.display.user_errors import user_errors
from hvd_kernel.magics.options import Options, nearest


@dataclass(frozen=True)
class Names:
    """Sources of names for completion."""

    ranks: Callable[[str], list[str]]  # variables of the ranks that start with a symbol
    notebook: Callable[[str], list[str]]  # the same, of the notebook
    jobs: Callable[[], list[str]]  # every job
    running: Callable[[], list[str]]  # jobs that have not ended


Completer = Callable[[Names, str], list[str]]


def nothing(_names: Names, _symbol: str) -> list[str]:
    """Complete options alone."""
    return []


def rank_variables(names: Names, symbol: str) -> list[str]:
    """Complete variables of the ranks."""
    return names.ranks(symbol)


def notebook_variables(names: Names, symbol: str) -> list[str]:
    """Complete variables of the notebook."""
    return names.notebook(symbol)


def every_job(names: Names, _symbol: str) -> list[str]:
    """Complete jobs."""
    return names.jobs()


def running_jobs(names: Names, _symbol: str) -> list[str]:
    """Complete jobs that can be cancelled, or all of them."""
    running = names.running()
    return [*running, "all"] if running else []


def choices(*words: str) -> Completer:
    """Return a completer of these words."""
    return lambda _names, _symbol: list(words)


MANY = 1000
"""Limit of arguments that are names of variables."""


@dataclass(frozen=True)
class Subcommand:
    """One row: ``act`` gets the options; the arguments after the name are ``options.arguments[1:]``."""

    act: Callable[[Context, Options], None]
    usage: str  # for %hvd? and for errors
    doc: str
    max_arguments: int = 0  # after its name
    anytime: bool = False  # also while a cell runs (from a subshell, or beside a background cell)
    completes: Completer = nothing  # of its arguments
    such_as: str = ""  # the same with example values, if the usage has placeholders

    @property
    def example(self) -> str:
        """A line that works as it is."""
        return self.such_as or self.usage

    def help(self) -> str:
        """Return the text of its ``--help``."""
        example = f"For example:\n\n    {self.such_as}\n" if self.such_as else ""
        parts = [f"{self.doc[:1].upper()}{self.doc[1:]}.\n", f"    {self.usage}\n", example]
        return "\n".join(part for part in parts if part)


def _help(context: Context, _options: Options) -> None:
    """Show one line for each sub-command.

    Example: ``%hvd help``.
    """
    context.writer().write(usage())


SUBCOMMANDS: dict[str, Subcommand] = {
    "start": Subcommand(
        lifecycle.start,
        "%hvd start -np 4",
        "start 4 ranks (-H, --hostfile, --gpus, --mpi-args, --respawn auto; --keep [NAME]: they outlive this kernel)",
    ),
    "restart": Subcommand(
        lifecycle.restart,
        "%hvd restart",
        "start the same ranks again; their variables are lost (--force: also while a job runs)",
    ),
    "attach": Subcommand(
        lifecycle.attach,
        "%hvd attach [NAME]",
        "attach to ranks that an earlier kernel started with --keep, with their variables",
        max_arguments=1,
        anytime=True,
        such_as="%hvd attach digits",
    ),
    "respawn": Subcommand(
        lifecycle.respawn,
        "%hvd respawn [2]",
        "replace dead ranks; the others keep their variables (--restore model,opt; --force: also living)",
        max_arguments=1,
        such_as="%hvd respawn 2 --restore model,opt",
    ),
    "resize": Subcommand(
        lifecycle.resize,
        "%hvd resize N",
        "resize to N ranks: survivors keep their variables, the newest leave (or --drop 0,3), new ranks join",
        max_arguments=1,
        anytime=True,
        such_as="%hvd resize 6",
    ),
    "stop": Subcommand(lifecycle.stop, "%hvd stop", "stop the ranks (--force: also while a job runs)"),
    "status": Subcommand(lifecycle.status, "%hvd status", "show one line per rank", anytime=True),
    "stacks": Subcommand(
        inspection.stacks,
        "%hvd stacks",
        "show the stack of every rank, also while a cell runs (--ranks 2)",
        anytime=True,
    ),
    "vars": Subcommand(
        variables.show_variables,
        "%hvd vars",
        "show the ranks' variables, and which ranks agree (%hvd vars a b)",
        MANY,
        anytime=True,
        completes=rank_variables,
    ),
    "check": Subcommand(
        check,
        "%hvd check model opt",
        "compare variables bit for bit, down to the part that differs (seeds, --strict)",
        MANY,
        completes=rank_variables,
    ),
    "barrier": Subcommand(inspection.barrier, "%hvd barrier", "wait until every rank has arrived"),
    "memory": Subcommand(
        inspection.memory,
        "%hvd memory",
        "show the memory use of the ranks: the largest variables with their gradients, all tensors (--ranks 2)",
    ),
    "gc": Subcommand(
        inspection.collect_garbage,
        "%hvd gc",
        "free unused memory: the last exception with its tensors, caches (--ranks 2)",
    ),
    "bench": Subcommand(
        inspection.bench,
        "%hvd bench",
        "measure allreduce on this machine: ours, Gloo, MPI and the limit, in about half a minute (-np 4)",
    ),
    "runs": Subcommand(
        records.runs,
        "%hvd runs",
        "list the cells that trained, of all kernels, with their figures; %hvd runs 3 7 compares two",
        max_arguments=8,
        anytime=True,
    ),
    "export": Subcommand(
        records.export,
        "%hvd export FILE",
        "write the cells that ran on these ranks as a script; variables of --push become its arguments (--force)",
        max_arguments=1,
        such_as="%hvd export train.py",
    ),
    "clean": Subcommand(
        clean,
        "%hvd clean",
        "remove what clusters of ended kernels have left behind (--dry-run: list; --kept NAME: end detached ranks)",
        anytime=True,
    ),
    "track": Subcommand(
        records.track,
        "%hvd track jsonl tensorboard:runs",
        "send the values of hvd.log to these services, also mlflow, polyaxon, off (--per-rank; show lists the runs)",
        max_arguments=9,
        anytime=True,
    ),
    "timeline": Subcommand(
        timeline,
        "%hvd timeline [save FILE]",
        "show what each rank did most recently, also after a run; start [FILE], stop, show [FILE]: rank 0 records all",
        max_arguments=2,
        anytime=True,
        completes=choices("save", "start", "stop", "show"),
        such_as="%hvd timeline save run.json",
    ),
    "job": Subcommand(
        records.job,
        "%hvd job plan FILE",
        "show the tasks of a platform's file as a table (hostfile, polyaxonfile, riseml.yml, a manifest, a script)",
        max_arguments=2,
        anytime=True,
        such_as="%hvd job plan polyaxonfile.yml",
    ),
    "client": Subcommand(
        lifecycle.client,
        "%hvd client [NAME]",
        "create an ipyparallel.Client of the ranks, as rc or NAME: views, maps, AsyncResult, %px",
        max_arguments=1,
        anytime=True,
        such_as="%hvd client rc",
    ),
    "help": Subcommand(_help, "%hvd help", "show this list", anytime=True),
    "doctor": Subcommand(
        inspection.doctor,
        "%hvd doctor",
        "show what is missing on this machine, and how to install it (--on ray: on the engine)",
        anytime=True,
    ),
}


def find(options: Options) -> Subcommand:
    """Return the sub-command of a line; status if the line is empty.

    Raises
    ------
    UsageError
        There is no such sub-command, or it has too many arguments.
    """
    name = options.arguments[0] if options.arguments else "status"
    subcommand = SUBCOMMANDS.get(name)
    if subcommand is None:
        line = " ".join(options.arguments)
        raise UsageError(
            f"%hvd: {line!r} is not understood{nearest(name, [*SUBCOMMANDS])}; %hvd help lists the commands"
        )
    if len(options.arguments) > 1 + subcommand.max_arguments:
        raise UsageError(f"%hvd: {' '.join(options.arguments)!r} has too many arguments: write {subcommand.usage}")
    return subcommand


def usage() -> str:
    """Return one line for each sub-command."""
    rows = SUBCOMMANDS.values()
    width = max(len(row.usage) for row in rows)
    return "Sub-commands:\n\n" + "".join(f"    {row.usage.ljust(width)}  {row.doc}\n" for row in rows)


@user_errors()
def hvd(context: Context, options: Options) -> None:
    """Run the sub-command of a line.

    Example: ``%hvd start -np 4``.

    Raises
    ------
    UsageError
        There is no such sub-command, or the ranks are busy with a cell; or as the sub-command.
    """
    subcommand = find(options)
    with nullcontext() if subcommand.anytime else context.manager.use(force=options.force):
        subcommand.act(context, options)
