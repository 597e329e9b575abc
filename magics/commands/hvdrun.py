"""%%hvdrun: the cell on every rank."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hvd_kernel.errors import UsageError
from hvd_kernel.magics.cell_driver import drive
from hvd_kernel.magics.cluster_request import default, ignored_parts, wanted
from hvd_kernel.magics.commands.hvdpull import gathered, pulled
from hvd_kernel.magics.commands.hvdpush import local_values
from hvd_kernel.magics.commands.subcommands import keep, respawn
from hvd_kernel.magics.context import Context
from hvd_kernel.magics.display import error_policy
from hvd_kernel.magics.display.job_output import JobWriter
from hvd_kernel.magics.display.rank_failures import local_hint
from hvd_kernel.magics.display.results import CellResult
from hvd_kernel.magics.display.user_error import user_errors
from hvd_kernel.magics.display.writer import Writer
from hvd_kernel.magics.export.ran_cell import Given, RanCell, literals
from hvd_kernel.magics.jobs import BackgroundJob
from hvd_kernel.magics.options import Options, resolve
from hvd_kernel.magics.partition import split
from hvd_kernel.magics.runner import CellRunner
from hvd_kernel.magics.shell import smoke
from hvd_kernel.magics.shell.escalation import replace_stuck
from hvd_kernel.magics.shell.local import run_here
from hvd_kernel.processes.cluster_spec import ClusterSpec

if TYPE_CHECKING:
    from hvd_kernel.cluster import Session

MORE = """\
    %%hvdrun -np 4
    x = torch.full((3,), float(rank))
    hvd.allreduce(x, name="x", op=hvd.Sum)

hvd, rank, size, local_rank and device are there; variables stay between cells. Each rank's last expression is
shown, once for ranks that agree. A line of mpirun or horovodrun behind -- says ranks, hosts and variables:
%%hvdrun -- mpirun -np 4 -x A python train.py"""


def run(context: Context, options: Options, code: str) -> Any:
    """Run the cell on the ranks, in the background, or afterwards here too.

    Example: ``%%hvdrun -np 4 --push lr -o loss``.

    Raises
    ------
    UsageError
        The line is not understood, a variable to push is not there, or the ranks are busy with another cell.
    ClusterError
        The ranks cannot be started, or one of them dies; what a rank raises itself is raised as it is.
    """
    with user_errors():
        for sentence in ignored_parts(options):
            Writer(context.shell).say(f"{sentence}\n", "stderr")
        if options.bg is not None:
            _in_background(context, options, code)
            return None
        with context.manager.use():
            _on_ranks(_Cell.of(context, options, code))
    return run_here(context.shell, code, context.manager.cells.number) if options.local else None


@dataclass(frozen=True)
class _Cell:
    """A cell and what its line asks for; ``values`` and each rank's ``parts`` are pushed first."""

    context: Context
    options: Options
    code: str
    values: dict[str, Any]
    parts: dict[int, dict[str, Any]]
    given: Given  # both, as literals: in the background the values go when they are pushed
    spec: ClusterSpec
    ranks: tuple[int, ...]

    @classmethod
    def of(cls, context: Context, options: Options, code: str) -> _Cell:
        values = local_values(context.shell, options.push)
        spec = wanted(options, context.manager.spec or default(options.gpus))
        ranks = resolve(options.ranks, spec.n)
        parts = _dealt(context, options.scatter, ranks)
        given = literals(values), {rank: literals(each) for rank, each in parts.items()}
        return cls(context, options, code, values, parts, given, spec, ranks)

    def ready(self) -> Session:
        """Return a session in which the cell can run."""
        manager, writer = self.context.manager, Writer(self.context.shell)
        keep.check(self.context, self.options, self.spec)
        session = manager.ensure(
            self.spec, lambda text: writer.say(f"{text}\n"), writer.status(), force=self.options.force
        )
        respawn.if_wanted(self.context)
        keep.keep(self.context, self.options)
        self.push(session)
        return session

    def push(self, session: Session) -> None:
        if self.values:
            session.push(self.values, self.ranks, force=self.options.force)
        if self.parts:
            session.scatter(self.parts, force=self.options.force)

    def pull(self, session: Session) -> None:
        options, user_ns = self.options, self.context.shell.user_ns
        if options.pull:
            user_ns.update(pulled(session, options.pull, options, self.ranks))
        if options.gather:
            whole, errors = gathered(session, options.gather, options, self.ranks)
            user_ns.update(whole)
            if errors:
                raise errors[0]

    def record(self, number: int, *, failed: bool) -> RanCell:
        return RanCell(number, self.code, None if len(self.ranks) == self.spec.n else self.ranks, *self.given, failed)

    def run(self, session: Session, writer: Writer, job: BackgroundJob | None = None) -> bool:
        """Run the cell; False where it has failed and nothing is to be raised."""
        options, user_ns = self.options, self.context.shell.user_ns
        watch, run, renderer = drive(
            session, self.context.manager, writer, self.code, self.ranks, timeout=options.timeout, job=job
        )
        replace_stuck(replace(self.context, own=job.writer if job else None), watch)
        self.context.manager.ran.append(self.record(run.cell, failed=watch.failed))
        if self.failed(watch, writer, job):
            return False
        if options.out:
            user_ns[options.out] = CellResult(
                run.values(force=options.force), renderer.printed("stdout"), renderer.printed("stderr")
            )
        return True

    def failed(self, watch: CellRunner, writer: Writer, job: BackgroundJob | None = None) -> bool:
        """Raise what the ranks have raised, or show it where the line says so; False where they have not."""
        options, user_ns = self.options, self.context.shell.user_ns
        try:
            watch.check(local_hint(user_ns))
        except error_policy.OF_THE_RANKS as error:
            if options.raise_error or watch.interrupted:
                raise
            names = [*filter(None, [options.out]), *options.pull, *options.gather]
            user_ns.update(dict.fromkeys(names, error))  # lest they have an older cell's values
            if job is not None:
                raise  # to the table of jobs it has failed; who waits for it is shown the error
            error_policy.show(error, writer)
            return True
        return False


def _dealt(context: Context, names: tuple[str, ...], ranks: tuple[int, ...]) -> dict[int, dict[str, Any]]:
    """Return each rank's parts of the notebook's variables."""
    parts = {name: split(name, value, len(ranks)) for name, value in local_values(context.shell, names).items()}
    return {rank: {name: each[i] for name, each in parts.items()} for i, rank in enumerate(ranks)} if parts else {}


def _on_ranks(cell: _Cell) -> None:
    if cell.options.smoke and 0 not in cell.ranks:
        raise UsageError("%%hvdrun: --smoke runs the cell on rank 0 first, which is not among --ranks")
    session, writer = cell.ready(), Writer(cell.context.shell)
    if not cell.code.strip():
        cell.pull(session)
        return
    if cell.options.smoke and session.n > 1:
        watch = smoke.run(cell.context, session, cell.code, cell.options.timeout)
        if cell.failed(watch, writer):
            return
    if cell.run(session, writer):
        cell.pull(session)


def _in_background(context: Context, options: Options, code: str) -> None:
    if options.smoke:
        raise UsageError("%%hvdrun: --smoke waits for rank 0: leave out --smoke or --bg")
    if options.local:
        raise UsageError("%%hvdrun: --local keeps the notebook's own process busy: leave out --local or --bg")
    cell, manager = _Cell.of(context, options, code), context.manager
    manager.keep(cell.spec)

    def work(job: BackgroundJob) -> None:
        with user_errors():
            respawn.if_wanted(replace(context, own=job.writer))
            session = manager.current()
            cell.push(session)
            cell.run(session, job.writer, job)
            cell.pull(session)

    def prepare() -> None:  # in the cell, before the next one changes a value in place
        cell.ready()
        cell.values.clear()
        cell.parts.clear()

    name, number = manager.jobs.name(options.bg or ""), manager.cells.number
    job = BackgroundJob(
        name, cell.ranks, JobWriter(context.shell), work, raise_error=options.raise_error, number=number
    )
    manager.hand_over(job, prepare)
