"""%%hvdrun runs the cell on the ranks; %hvdauto does so for plain cells."""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hvd_kernel.errors import UsageError
from hvd_kernel.magics.cell_view import CellView, drive
from hvd_kernel.magics.cluster_request import default_cluster, ignored_parts, requested_cluster
from hvd_kernel.magics.commands.lifecycle import check_kept_name, keep_ranks, replace_stuck, respawn_dead
from hvd_kernel.magics.commands.variables import gathered, local_values, pulled
from hvd_kernel.magics.context import Context
from hvd_kernel.magics.display.results import CellResult
from hvd_kernel.magics.display.user_errors import OF_THE_RANKS, local_hint, show_error, user_errors
from hvd_kernel.magics.display.writer import Writer
from hvd_kernel.magics.export import Given, ScriptCell, literals
from hvd_kernel.magics.jobs import BackgroundJob, JobWriter
from hvd_kernel.magics.options import Options, resolve
from hvd_kernel.magics.partition import split
from hvd_kernel.processes.cluster_spec import ClusterSpec

if TYPE_CHECKING:
    from hvd_kernel.cluster import Session


RUN_HELP = """\
    %%hvdrun -np 4
    x = torch.full((3,), float(rank))
    hvd.allreduce(x, name="x", op=hvd.Sum)

hvd, rank, size, local_rank and device are defined; variables stay between cells. Each rank's last expression is
shown, once for ranks that agree. A line of mpirun or horovodrun after -- sets ranks, hosts and variables:
%%hvdrun -- mpirun -np 4 -x A python train.py"""


def run(context: Context, options: Options, code: str) -> Any:
    """Run the cell on the ranks, also in the background, or with ``--local`` afterwards in the notebook too.

    Example: ``%%hvdrun -np 4 --push lr -o loss``.

    Raises
    ------
    UsageError
        The line is wrong, a variable to push does not exist, or the ranks are busy with another cell.
    ClusterError
        The ranks cannot be started, or one of them dies; an exception of a rank is raised under its own name.
    """
    with user_errors():
        for sentence in ignored_parts(options):
            Writer(context.shell).write(f"{sentence}\n", "stderr")
        if options.bg is not None:
            _in_background(context, options, code)
            return None
        with context.manager.use():
            _on_ranks(CellRequest.of(context, options, code))
    return run_here(context.shell, code, context.manager.cells.number) if options.local else None


@dataclass(frozen=True)
class CellRequest:
    """Request of the user to run a cell: its code with the options of its line.

    ``values``, and each rank's ``parts``, are pushed first.
    """

    context: Context
    options: Options
    code: str
    values: dict[str, Any]
    parts: dict[int, dict[str, Any]]
    pushed: Given  # both, as literals: in the background the values are freed once they are pushed
    spec: ClusterSpec
    ranks: tuple[int, ...]

    @classmethod
    def of(cls, context: Context, options: Options, code: str) -> CellRequest:
        """Return the request of a line and a cell.

        Raises
        ------
        UsageError
            A variable to push does not exist, cannot be split, or the line requests an impossible cluster.
        """
        values = local_values(context.shell, options.push)
        spec = requested_cluster(options, context.manager.spec or default_cluster(options.gpus))
        ranks = resolve(options.ranks, spec.n)
        parts = _dealt(context, options.scatter, ranks)
        pushed = literals(values), {rank: literals(part) for rank, part in parts.items()}
        return cls(context, options, code, values, parts, pushed, spec, ranks)

    def ready(self) -> Session:
        """Return a session in which the cell can run."""
        manager, writer = self.context.manager, Writer(self.context.shell)
        check_kept_name(self.context, self.options, self.spec)
        session = manager.ensure(
            self.spec, lambda text: writer.write(f"{text}\n"), writer.status(), force=self.options.force
        )
        respawn_dead(self.context)
        keep_ranks(self.context, self.options)
        self.push(session)
        return session

    def push(self, session: Session) -> None:
        """Set the pushed variables on the ranks."""
        if self.values:
            session.push(self.values, self.ranks, force=self.options.force)
        if self.parts:
            session.scatter(self.parts, force=self.options.force)

    def pull(self, session: Session) -> None:
        """Set the variables of ``--pull`` and ``--gather`` in the notebook."""
        options, user_ns = self.options, self.context.shell.user_ns
        if options.pull:
            user_ns.update(pulled(session, options.pull, options, self.ranks))
        if options.gather:
            whole, errors = gathered(session, options.gather, options, self.ranks)
            user_ns.update(whole)
            if errors:
                raise errors[0]

    def record(self, number: int, *, failed: bool) -> ScriptCell:
        """Return the cell for an export as a script."""
        return ScriptCell(
            number, self.code, None if len(self.ranks) == self.spec.n else self.ranks, *self.pushed, failed
        )

    def run(self, session: Session, writer: Writer, job: BackgroundJob | None = None) -> bool:
        """Run the cell; return False if it failed and ``--no-raise-error`` suppresses the error."""
        options, user_ns = self.options, self.context.shell.user_ns
        view = drive(
            session,
            self.context.manager,
            writer,
            self.code,
            self.ranks,
            timeout=options.timeout,
            independent=options.independent,
            job=job,
        )
        replace_stuck(replace(self.context, job_writer=job.writer if job else None), view)
        self.context.manager.script_cells.append(self.record(view.execution.cell, failed=view.failed))
        if self.failed(view, writer, job):
            return False
        if options.out:
            user_ns[options.out] = CellResult(
                view.execution.values(force=options.force), view.output.printed("stdout"), view.output.printed("stderr")
            )
        return True

    def failed(self, view: CellView, writer: Writer, job: BackgroundJob | None = None) -> bool:
        """Raise the error of the ranks, or show it with ``--no-raise-error``; return whether there is one."""
        options, user_ns = self.options, self.context.shell.user_ns
        try:
            view.check(local_hint(user_ns))
        except OF_THE_RANKS as error:
            if options.raise_error or view.interrupted:
                raise
            names = [*filter(None, [options.out]), *options.pull, *options.gather]
            user_ns.update(dict.fromkeys(names, error))  # instead of values of an earlier cell
            if job is not None:
                raise  # the job is listed as failed, and %hvdjobs --wait shows the error
            show_error(error, writer)
            return True
        return False


def _dealt(context: Context, names: tuple[str, ...], ranks: tuple[int, ...]) -> dict[int, dict[str, Any]]:
    """Split variables of the notebook among the ranks; return each rank's parts."""
    parts = {name: split(name, value, len(ranks)) for name, value in local_values(context.shell, names).items()}
    return {rank: {name: values[i] for name, values in parts.items()} for i, rank in enumerate(ranks)} if parts else {}


def _on_ranks(request: CellRequest) -> None:
    if request.options.smoke and 0 not in request.ranks:
        raise UsageError("%%hvdrun: --smoke runs the cell on rank 0 first, which is not among --ranks")
    session, writer = request.ready(), Writer(request.context.shell)
    if not request.code.strip():
        request.pull(session)
        return
    if request.options.smoke and session.n > 1:
        view = _run_on_rank_0(request.context, session, request.code, request.options)
        if request.failed(view, writer):
            return
    if request.run(session, writer):
        request.pull(session)


def _in_background(context: Context, options: Options, code: str) -> None:
    if options.smoke:
        raise UsageError("%%hvdrun: --smoke waits for rank 0: leave out --smoke or --bg")
    if options.local:
        raise UsageError("%%hvdrun: --local keeps the notebook's own process busy: leave out --local or --bg")
    request, manager = CellRequest.of(context, options, code), context.manager
    manager.check_jobs(request.spec)

    def work(job: BackgroundJob) -> None:
        with user_errors():
            respawn_dead(replace(context, job_writer=job.writer))
            session = manager.current()
            request.push(session)
            request.run(session, job.writer, job)
            request.pull(session)

    def prepare() -> None:  # within this cell, before the next one changes a value in place
        request.ready()
        request.values.clear()
        request.parts.clear()

    name, number = manager.jobs.name(options.bg or ""), manager.cells.number
    job = BackgroundJob(
        name, request.ranks, JobWriter(context.shell), work, raise_error=options.raise_error, number=number
    )
    manager.start_job(job, prepare)


_COMPARED = 1 << 28  # bytes: changes of larger variables are not reported
_ANSWER_S = 600.0


def _run_on_rank_0(context: Context, session: Session, code: str, options: Options) -> CellView:
    """Run the code on rank 0 alone, before all ranks run it; show its output only if it fails.

    Collectives have the results of one rank. Changes to variables remain: variables that existed before and that the
    code changed are named, because rank 0 runs the code twice and the other ranks once.

    Raises
    ------
    UsageError
        There are process sets, which rank 0 cannot use alone.
    """
    session.make_ready()
    before = _digests(session)
    refused = session.ask("alone", [0])[0][0]["refused"]
    if refused:
        raise UsageError(f"%%hvdrun: --smoke is for cells without process sets, and {refused}: leave out --smoke")
    kept, writer = JobWriter(context.shell), context.writer()
    try:
        view = drive(
            session,
            context.manager,
            kept,
            code,
            (0,),
            timeout=options.timeout,
            independent=options.independent,
            counts=False,
        )
        replace_stuck(context, view)
    finally:
        if not session.dead and not session.running:
            session.reset_communicator()
    if view.failed:
        kept.replay(writer)
        writer.write("the cell has failed on rank 0 alone, the other ranks have not run it\n", "stderr")
    elif changed := _changed(before, _digests(session)):
        were = "was" if len(changed) == 1 else "were"
        text = f"{', '.join(changed)} {were} changed on rank 0 alone, and will be once more"
        writer.write(f"{text}: rank 0 may differ from the others (%hvd check {' '.join(changed)})\n", "stderr")
    return view


def _digests(session: Session, names: list[str] | None = None) -> dict[str, str]:
    """Return digests of rank 0's variables."""
    question = {"names": names or [], "compare": _COMPARED}
    rows = session.ask("variables", [0], question, timeout=_ANSWER_S)[0][0]["rows"]
    return {name: row["digest"] for name, row in rows.items() if row.get("digest")}


def _changed(before: dict[str, str], after: dict[str, str]) -> list[str]:
    return sorted(name for name, was in before.items() if after.get(name, was) != was)


def run_here(shell: Any, cell: str, number: int) -> Any:
    """Run a cell in the user's namespace, as IPython's %%time does; return the value of its last expression.

    ``number`` is the cell's number in tracebacks.
    """
    source = shell.transform_cell(cell)
    tree = shell.compile.ast_parse(source)
    name = shell.compile.cache(source, number)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, name, "exec"), shell.user_ns)  # noqa: S102 - the user's own cell, requested by --local
    if last is None:
        return None
    return eval(compile(ast.Expression(last.value), name, "eval"), shell.user_ns)  # noqa: S307 - as above


SWITCH = ("on", "off")


@user_errors()
def auto(context: Context, options: Options) -> None:
    """Set where plain cells run, or toggle it if the line names no state.

    Example: ``%hvdauto on``.

    Raises
    ------
    UsageError
        The line has another word than ``on`` or ``off``.
    """
    state = " ".join(options.arguments) or ("off" if context.transformer.auto else "on")
    if state not in SWITCH:
        raise UsageError(f"%hvdauto: {state!r} is not understood: write %hvdauto on or %hvdauto off")
    context.transformer.auto = state == "on"
    context.writer().write(f"plain cells run {'on the ranks' if context.transformer.auto else 'here'}\n")
