"""%%hvdrun: the cell on every rank."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, cell_magic, magics_class, no_var_expand

from hvd_kernel.errors import UsageError
from hvd_kernel.magics.desk import Desk
from hvd_kernel.magics.holder import Holder, default_n
from hvd_kernel.magics.local import run_here
from hvd_kernel.magics.options import Options, parse, resolve, wanted
from hvd_kernel.magics.plain import plain_errors
from hvd_kernel.magics.render import Renderer
from hvd_kernel.magics.results import CellResult, PerRank
from hvd_kernel.magics.runner import Watch
from hvd_kernel.magics.screen import Screen

if TYPE_CHECKING:
    from hvd_kernel.cluster import Run, Session


@magics_class
class RunMagics(Magics):
    """The cell magic. What it needs between cells is in the holder."""

    shell: InteractiveShell

    def __init__(self, desk: Desk) -> None:
        super().__init__(desk.shell)
        self.desk = desk
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
        --pull c                     bring variables of the ranks here afterwards: c[0] is rank 0's
        -o NAME, --out NAME          keep the last expressions: NAME[0], NAME.stdout[0]
        --timeout S                  interrupt the cell after S seconds
        -H h1:4,h2:4, --hosts        where the ranks run
        --hostfile FILE              the same, from a file
        --mpi-args '...'             more arguments for mpiexec
        """
        with plain_errors():
            options = parse("%%hvdrun", line)
            with self.holder.use():
                self._on_ranks(options, cell)
        return run_here(self.shell, cell) if options.local else None

    def _on_ranks(self, options: Options, cell: str) -> None:
        screen = Screen(self.shell)
        pushed = local_values(self.shell, options.push)
        spec = wanted(options, self.holder.spec, default_n())
        ranks = resolve(options.ranks, spec.n)
        session = self.holder.ensure(spec, lambda text: screen.say(f"{text}\n"), screen.status())
        if pushed:
            session.push(pushed, ranks)
        if cell.strip():
            self._run(session, options, ranks, cell, screen)
        if options.pull:
            self.shell.user_ns.update(pulled(session, options.pull, ranks))

    def _run(self, session: Session, options: Options, ranks: tuple[int, ...], cell: str, screen: Screen) -> None:
        watch, run, renderer = drive(session, self.holder, screen, cell, ranks, timeout=options.timeout)
        watch.check(self.shell.user_ns.__contains__)
        if options.out:
            self.shell.user_ns[options.out] = CellResult(
                run.values(), renderer.printed("stdout"), renderer.printed("stderr")
            )


def drive(
    session: Session, holder: Holder, screen: Screen, code: str, ranks: tuple[int, ...], *, timeout: float | None = None
) -> tuple[Watch, Run, Renderer]:
    """Run code on the ranks as a cell, to its end, and show what it gives; ``Watch.check`` says whether it failed."""
    from hvd_kernel.widgets import Dashboard  # noqa: PLC0415 - ipywidgets is loaded with the first cell, not with the kernel

    holder.cell += 1
    before = holder.samples
    renderer = Renderer(screen, Dashboard(ranks, f"cell {holder.cell}", before), ranks, before)
    run = session.run(code, ranks, holder.cell)
    watch = Watch(session, run, renderer, ranks, timeout)
    watch.drive()
    holder.samples.update(renderer.latest)
    renderer.finish(watch.word())
    return watch, run, renderer


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


def pulled(session: Session, names: tuple[str, ...], ranks: tuple[int, ...]) -> dict[str, PerRank]:
    """Return variables of the ranks, one value per rank each."""
    values = session.pull(names, ranks)
    return {name: PerRank({rank: values[rank][name] for rank in ranks}) for name in names}
