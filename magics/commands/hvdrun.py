"""%%hvdrun: the cell on every rank."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import cell_magic, magics_class, no_var_expand

from hvd_kernel.errors import ClusterError, UsageError
from hvd_kernel.formatting.rank_labels import named, spans
from hvd_kernel.magics.cluster_manager import Holder, default_n
from hvd_kernel.magics.commands import keep, respawn
from hvd_kernel.magics.context import Desk, DeskMagics
from hvd_kernel.magics.display import error_policy
from hvd_kernel.magics.display.job_output import Recorder
from hvd_kernel.magics.display.render import Renderer
from hvd_kernel.magics.display.results import CellResult, PerRank
from hvd_kernel.magics.display.user_error import plain_errors
from hvd_kernel.magics.display.writer import Screen
from hvd_kernel.magics.interrupts import Presses, counted
from hvd_kernel.magics.jobs import Job
from hvd_kernel.magics.options import Options, left_aside, parse, resolve, says_one_rank, wanted
from hvd_kernel.magics.runner import Watch
from hvd_kernel.magics.shell.escalation import replace_stuck
from hvd_kernel.magics.shell.local import run_here
from hvd_kernel.magics.shell.prompt_front_end import person_at
from hvd_kernel.magics.shell.prompts import Prompts
from hvd_kernel.processes.cluster_spec import ClusterSpec

if TYPE_CHECKING:
    from hvd_kernel.cluster import Run, Session
    from hvd_kernel.protocol.messages import MetricsSample


@magics_class
class RunMagics(DeskMagics):
    """The cell magic. What it needs between cells is in the holder."""

    def __init__(self, desk: Desk) -> None:
        super().__init__(desk)
        self.holder = desk.holder

    @no_var_expand
    @cell_magic
    def hvdrun(self, line: str, cell: str) -> Any:
        """Run the cell on every rank of the cluster; the first use starts it.

        ::

            %%hvdrun -np 4
            x = torch.full((3,), float(rank))
            hvd.allreduce(x, name="x", op=hvd.Sum)

        hvd, rank, size, local_rank and device are there; variables stay between cells. Each rank's last expression is
        shown, once for ranks that agree.

        -np N, -n N, --num-proc N    number of ranks; another number starts them again, without their variables
        --ranks 0,2-3|::2|all|root   only these ranks (also --targets, -t)
        --local                      also here, in the notebook, afterwards
        --push a,b                   copy variables from the notebook to the ranks first
        --pull c                     bring variables of the ranks here afterwards: c[0] is rank 0's;
                                     with --ranks 2 c is rank 2's
        --force                      push and pull however much it is; with another -np lose variables that are not kept
        -o NAME, --out NAME          keep the last expressions: NAME[0], NAME.stdout[0]
        --timeout S                  interrupt the cell after S seconds
        --no-raise-error             show what fails on the ranks, but let the cell succeed; the names of -o and --pull
                                     are then the error
        --bg [NAME]                  in the background: %hvdjobs, %hvdcancel NAME; behind the jobs that are there
        --keep [NAME]                the ranks outlive this kernel: %hvd attach after its restart
        -H h1:4,h2:4, --hosts        where the ranks run
        --hostfile FILE              the same, from a file
        --gpus auto|all|0,1|none     the devices that the ranks of each host take turns on
        --mpi-args '...'             more arguments for mpiexec
        --job FILE                   ranks, hosts, limits and variables as a platform's file says
        -- mpirun -np 4 -x A ...     the same, as a line of mpirun or horovodrun says
        """
        with plain_errors():
            options = parse("%%hvdrun", line)
            for sentence in left_aside(options):
                Screen(self.shell).say(f"{sentence}\n", "stderr")
            if options.bg is not None:
                self._in_background(options, cell)
                return None
            with self.holder.use():
                self._on_ranks(options, cell)
        return run_here(self.shell, cell, self.holder.cells.number) if options.local else None

    def _on_ranks(self, options: Options, cell: str) -> None:
        screen = Screen(self.shell)
        values = local_values(self.shell, options.push)
        spec = wanted(options, self.holder.spec, default_n(options.gpus))
        ranks = resolve(options.ranks, spec.n)
        session = self._ready(spec, screen, values, ranks, options)
        if not cell.strip() or self._run(session, options, ranks, cell, screen):
            self._pull(session, options, ranks)

    def _in_background(self, options: Options, cell: str) -> None:
        if options.local:
            raise UsageError("%%hvdrun: --local would keep the notebook busy: leave it out, or --bg")
        values = local_values(self.shell, options.push)
        spec = wanted(options, self.holder.spec, default_n(options.gpus))
        self.holder.keep(spec)

        def work(job: Job) -> None:
            with plain_errors():
                respawn.if_wanted(replace(self.desk, own=job.screen))
                session = self.holder.current()
                _push(session, values, job.ranks, force=options.force)
                self._run(session, options, job.ranks, cell, job.screen, job=job)
                self._pull(session, options, job.ranks)

        def prepare() -> None:  # in the cell, before the next one changes a value in place
            self._ready(spec, Screen(self.shell), values, job.ranks, options)
            values.clear()

        name, ranks = self.holder.jobs.name(options.bg or ""), resolve(options.ranks, spec.n)
        number, screen = self.holder.cells.number, Recorder(self.shell)
        job = Job(name, ranks, screen, work, raise_error=options.raise_error, number=number)
        self.holder.hand_over(job, prepare)

    def _ready(
        self, spec: ClusterSpec, screen: Screen, values: dict[str, Any], ranks: tuple[int, ...], options: Options
    ) -> Session:
        keep.check(self.desk, options)
        session = self.holder.ensure(spec, lambda text: screen.say(f"{text}\n"), screen.status(), force=options.force)
        respawn.if_wanted(self.desk)
        keep.keep(self.desk, options)
        _push(session, values, ranks, force=options.force)
        return session

    def _pull(self, session: Session, options: Options, ranks: tuple[int, ...]) -> None:
        if options.pull:
            self.shell.user_ns.update(pulled(session, options.pull, options, ranks))

    def _run(
        self,
        session: Session,
        options: Options,
        ranks: tuple[int, ...],
        cell: str,
        screen: Screen,
        *,
        job: Job | None = None,
    ) -> bool:
        """Run the cell; False where it has failed and nothing is to be raised."""
        watch, run, renderer = drive(session, self.holder, screen, cell, ranks, timeout=options.timeout, job=job)
        replace_stuck(replace(self.desk, own=job.screen if job else None), watch)
        try:
            watch.check(self.shell.user_ns.__contains__)
        except error_policy.OF_THE_RANKS as error:
            if options.raise_error:
                raise
            names = [*filter(None, [options.out]), *options.pull]
            self.shell.user_ns.update(dict.fromkeys(names, error))  # lest they have an older cell's values
            if job is not None:
                raise  # to the table of jobs it has failed; who waits for it is shown the error
            error_policy.show(error, screen)
            return False
        if options.out:
            self.shell.user_ns[options.out] = CellResult(
                run.values(force=options.force), renderer.printed("stdout"), renderer.printed("stderr")
            )
        return True


def drive(
    session: Session,
    holder: Holder,
    screen: Screen,
    code: str,
    ranks: tuple[int, ...],
    *,
    timeout: float | None = None,
    job: Job | None = None,
) -> tuple[Watch, Run, Renderer]:
    """Run code on the ranks as a cell, to its end, and show what it gives; ``Watch.check`` says whether it failed."""
    number = holder.cells.number if job is None else job.number
    if job is not None:
        job.cell = number
    session.make_ready()  # a press ends this; from the start of the ranks on it is theirs
    begin = partial(session.run, code, ranks, number)
    return watched(session, holder, screen, begin, timeout=timeout, job=job)


def watched(
    session: Session,
    holder: Holder,
    screen: Screen,
    begin: Callable[[], Run],
    *,
    timeout: float | None = None,
    job: Job | None = None,
) -> tuple[Watch, Run, Renderer]:
    """Begin a run, or take one that goes on already, and show what it gives until its end."""
    from hvd_kernel.widgets import Dashboard  # noqa: PLC0415 - ipywidgets is loaded with the first cell, not with the kernel

    before, presses = holder.samples, job.presses if job else Presses()
    with counted(presses):  # from before their start: a cell that ended before its ranks would refuse the next one
        run = begin()
        ranks, cell = run.ranks, run.cell
        board = Dashboard(ranks, f"cell {cell}" if job is None else f"job {job.name}", before)
        renderer = Renderer(screen, board, ranks, before, cell)
        holder.prompts = prompts = Prompts(session, renderer, ranks, person_at(screen))
        watch = Watch(session, run, renderer, ranks, timeout, prompts=prompts)
        if job is not None:
            job.follow(watch, partial(steps_taken, renderer.latest, dict(before)))
            prompts.park(looked_at=job.screen.looked_at)
        watch.drive(presses)
    holder.samples.update(renderer.latest)
    renderer.finish(watch.word())
    return watch, run, renderer


def steps_taken(latest: Mapping[int, MetricsSample], before: Mapping[int, MetricsSample]) -> int:
    """Return the optimizer steps since ``before`` of the rank that has taken most; a fresh rank counts from zero."""
    earlier = {rank: sample.step for rank, sample in before.items()}
    now = {rank: sample.step for rank, sample in dict(latest).items()}
    return max((step - min(step, earlier.get(rank, 0)) for rank, step in now.items()), default=0)


def _push(session: Session, values: dict[str, Any], ranks: tuple[int, ...], *, force: bool) -> None:
    if values:
        session.push(values, ranks, force=force)


def local_values(shell: InteractiveShell, names: tuple[str, ...]) -> dict[str, Any]:
    """Return variables of the notebook.

    Raises
    ------
    UsageError
        If one is not there.
    """
    if missing := [name for name in names if name not in shell.user_ns]:
        raise UsageError(f"there is no variable `{missing[0]}` in the notebook to push")
    return {name: shell.user_ns[name] for name in names}


def pulled(session: Session, names: tuple[str, ...], options: Options, ranks: tuple[int, ...]) -> dict[str, Any]:
    """Return variables of the ranks: one value per rank each, or the plain value where ``--ranks`` says one number.

    Raises
    ------
    ClusterError
        If one of the ranks is dead, or has no such variable.
    """
    values = session.pull(names, ranks, force=options.force)
    if lost := [rank for rank in ranks if rank not in values]:
        remedy = f"--ranks {spans(values)} pulls from the others" if values else "%hvd restart starts fresh ones"
        raise ClusterError(f"nothing was pulled: {named(lost)} {'is' if len(lost) == 1 else 'are'} dead; {remedy}")
    if says_one_rank(options.ranks):
        return dict(values[ranks[0]])
    return {name: PerRank({rank: values[rank][name] for rank in ranks}) for name in names}
