"""Sub-commands of %hvd: the table from which its help, its completion and its errors are made.

A new sub-command is a row of this table and a function in a file of its own beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hvd_kernel.diagnosis.machine import examine, report
from hvd_kernel.errors import UsageError
from hvd_kernel.magics.commands.barrier import barrier
from hvd_kernel.magics.commands.stacks import stacks
from hvd_kernel.magics.commands.subcommands import attach, client, life, resize, respawn, variables
from hvd_kernel.magics.commands.subcommands.check import check
from hvd_kernel.magics.commands.subcommands.clean import clean
from hvd_kernel.magics.commands.subcommands.job_plan import job
from hvd_kernel.magics.commands.subcommands.timeline import timeline
from hvd_kernel.magics.commands.subcommands.track import track
from hvd_kernel.magics.context import Context
from hvd_kernel.magics.engines.doctor import examine_on
from hvd_kernel.magics.engines.engine_option import HERE
from hvd_kernel.magics.export.command import export
from hvd_kernel.magics.history.runs import runs
from hvd_kernel.magics.machine import memory
from hvd_kernel.magics.machine.bench import bench
from hvd_kernel.magics.options import Options, nearest
from hvd_kernel.magics.shell.completers import Completer, choices, nothing, rank_variables

MANY = 1000
"""Arguments that may follow where they are names of variables."""


@dataclass(frozen=True)
class Subcommand:
    """What one does: ``act`` is given the options; what follows its name is ``options.arguments[1:]``."""

    act: Callable[[Context, Options], None]
    usage: str  # as it is written, for %hvd? and for errors
    doc: str
    max_arguments: int = 0  # how many may follow its name
    anytime: bool = False  # also while a cell runs (from a subshell, or beside a background cell)
    completes: Completer = nothing  # what may follow
    such_as: str = ""  # the same with values, where usage has names for them

    @property
    def example(self) -> str:
        """A line that can be typed as it stands."""
        return self.such_as or self.usage

    def help(self) -> str:
        """Return what ``--help`` behind it shows."""
        example = f"For example:\n\n    {self.such_as}\n" if self.such_as else ""
        parts = [f"{self.doc[:1].upper()}{self.doc[1:]}.\n", f"    {self.usage}\n", example]
        return "\n".join(part for part in parts if part)


def _help(context: Context, _options: Options) -> None:
    """Show one line for each sub-command.

    Example: ``%hvd help``.
    """
    context.writer().say(usage())


def _doctor(context: Context, options: Options) -> None:
    """Show what is missing on this machine, or with ``--on`` on an engine, and how to get it.

    Example: ``%hvd doctor --on ray``.
    """
    context.writer().say(report(examine_on(options.on) if options.on not in {"", HERE} else examine()))


SUBCOMMANDS: dict[str, Subcommand] = {
    "start": Subcommand(
        life.start,
        "%hvd start -np 4",
        "start 4 ranks (-H, --hostfile, --gpus, --mpi-args, --respawn auto; --keep [NAME]: they outlive this kernel)",
    ),
    "restart": Subcommand(
        life.restart,
        "%hvd restart",
        "start the same ranks again; their variables are lost (--force: also while a job runs)",
    ),
    "attach": Subcommand(
        attach.attach,
        "%hvd attach [NAME]",
        "take over ranks that an earlier kernel has started with --keep, with their variables",
        max_arguments=1,
        anytime=True,
        such_as="%hvd attach digits",
    ),
    "respawn": Subcommand(
        respawn.act,
        "%hvd respawn [2]",
        "replace dead ranks, the others keep theirs (also --restore model,opt; --force for living ones)",
        max_arguments=1,
        such_as="%hvd respawn 2 --restore model,opt",
    ),
    "resize": Subcommand(
        resize.act,
        "%hvd resize N",
        "N ranks: those that stay keep their variables, the youngest leave (--drop 0,3: these), fresh ones come",
        max_arguments=1,
        anytime=True,
        such_as="%hvd resize 6",
    ),
    "stop": Subcommand(life.stop, "%hvd stop", "end the ranks (--force: also while a job runs)"),
    "status": Subcommand(life.status, "%hvd status", "one line per rank", anytime=True),
    "stacks": Subcommand(
        stacks, "%hvd stacks", "where every rank is, also while a cell runs (--ranks 2)", anytime=True
    ),
    "vars": Subcommand(
        variables.show,
        "%hvd vars",
        "the ranks' variables, and which ranks agree (%hvd vars a b)",
        MANY,
        anytime=True,
        completes=rank_variables,
    ),
    "check": Subcommand(
        check,
        "%hvd check model opt",
        "compare them bit for bit, down to the part that differs (seeds, --strict)",
        MANY,
        completes=rank_variables,
    ),
    "barrier": Subcommand(barrier, "%hvd barrier", "wait until every rank is there"),
    "memory": Subcommand(
        memory.show,
        "%hvd memory",
        "what fills the ranks: the largest variables with their gradients, all tensors (--ranks 2)",
    ),
    "gc": Subcommand(
        memory.collect,
        "%hvd gc",
        "free what nothing needs any more: the last exception with its tensors, caches (--ranks 2)",
    ),
    "bench": Subcommand(
        bench,
        "%hvd bench",
        "what allreduce gives on this machine: ours, Gloo, MPI and the limit, in about half a minute (-np 4)",
    ),
    "runs": Subcommand(
        runs,
        "%hvd runs",
        "the cells that trained, of all kernels, with their figures; %hvd runs 3 7 lays two over each other",
        max_arguments=8,
        anytime=True,
    ),
    "export": Subcommand(
        export,
        "%hvd export FILE",
        "write the cells that ran on these ranks as a script; what they got by --push becomes its arguments (--force)",
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
        track,
        "%hvd track jsonl tensorboard:runs",
        "write the values of hvd.log there, also mlflow, polyaxon, off (--per-rank; %hvd track show lists the runs)",
        max_arguments=9,
        anytime=True,
    ),
    "timeline": Subcommand(
        timeline,
        "%hvd timeline [save FILE]",
        "what each rank did at last, also after a run; start [FILE], stop, show [FILE]: rank 0 records all of it",
        max_arguments=2,
        anytime=True,
        completes=choices("save", "start", "stop", "show"),
        such_as="%hvd timeline save run.json",
    ),
    "job": Subcommand(
        job,
        "%hvd job plan FILE",
        "the tasks of a platform's file, as a table (hostfile, polyaxonfile, riseml.yml, a manifest, a script)",
        max_arguments=2,
        anytime=True,
        such_as="%hvd job plan polyaxonfile.yml",
    ),
    "client": Subcommand(
        client.act,
        "%hvd client [NAME]",
        "an ipyparallel.Client of the ranks, as rc or NAME: views, maps, AsyncResult, %px",
        max_arguments=1,
        anytime=True,
        such_as="%hvd client rc",
    ),
    "help": Subcommand(_help, "%hvd help", "this list", anytime=True),
    "doctor": Subcommand(
        _doctor, "%hvd doctor", "what is missing on this machine, and how to get it (--on ray: there)", anytime=True
    ),
}


def find(options: Options) -> Subcommand:
    """Return the sub-command that a line names; without one it is status.

    Raises
    ------
    UsageError
        If there is none of that name, or too many arguments follow it.
    """
    name = options.arguments[0] if options.arguments else "status"
    named = SUBCOMMANDS.get(name)
    if named is None:
        said = " ".join(options.arguments)
        raise UsageError(
            f"%hvd: {said!r} is not understood{nearest(name, [*SUBCOMMANDS])}; %hvd help lists the commands"
        )
    if len(options.arguments) > 1 + named.max_arguments:
        raise UsageError(f"%hvd: {' '.join(options.arguments)!r} has too many arguments: write {named.usage}")
    return named


def usage() -> str:
    """Return one line for each sub-command."""
    every = SUBCOMMANDS.values()
    width = max(len(each.usage) for each in every)
    return "Sub-commands:\n\n" + "".join(f"    {each.usage.ljust(width)}  {each.doc}\n" for each in every)
