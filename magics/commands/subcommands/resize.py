"""%hvd resize: more ranks, or fewer; those that stay keep process and variables."""

from __future__ import annotations

from hvd_kernel.errors import UsageError
from hvd_kernel.magics import cluster_size
from hvd_kernel.magics.context import Context
from hvd_kernel.magics.options import Options, resolve


def act(context: Context, options: Options) -> None:
    """Have as many ranks as the line says, or all but those that it drops.

    Example: ``%hvd resize 6``.

    Raises
    ------
    UsageError
        That is no number of ranks, or variables would be lost; ``--force`` loses them.
    ClusterError
        No ranks are running, or fresh ones do not come.
    """
    manager, writer = context.manager, context.writer()
    session, running = manager.current(), manager.in_cell
    drop = resolve(options.drop, session.n) if options.drop else ()
    n = _wanted(options, session.n, len(drop))
    if running is not None:
        if drop:
            raise UsageError(
                "%hvd resize: while a cell runs the highest numbers leave: leave out --drop, or wait for it"
            )
        writer.say(f"{running.result().resize(n, options.restore, force=options.force).result()}\n")
        return
    with manager.use(force=options.force):
        cluster_size.resize(
            session,
            manager.samples,
            n,
            lambda text: writer.say(f"{text}\n"),
            writer.status(),
            drop=drop,
            restore=options.restore,
            force=options.force,
        )


def resize(context: Context, n: int) -> str:
    """Have n ranks, at the next commit of a cell that runs; return what has become of it.

    Raises
    ------
    UsageError
        That is no number of ranks, variables would be lost, or the ranks are busy with another cell.
    ClusterError
        It could not be done.
    """
    if not isinstance(n, int) or isinstance(n, bool) or n < 1:
        raise UsageError(f"{n!r} is not a number of ranks: say 1 or more, as in hvd_kernel.resize(6)")
    manager = context.manager
    if (running := manager.in_cell) is not None:
        return running.result().resize(n).result()
    said: list[str] = []
    with manager.use():
        cluster_size.resize(manager.current(), manager.samples, n, said.append, lambda _text: None)
    return "\n".join(said)


def _wanted(options: Options, before: int, dropped: int) -> int:
    said = options.arguments[1] if len(options.arguments) > 1 else ""
    if said and (not said.isdecimal() or not int(said)):
        raise UsageError(f"%hvd resize: {said!r} is not a number of ranks: write 1 or more, as in %hvd resize 6")
    numbers = {int(said)} if said else set()
    numbers |= {options.n} if options.n else set()
    if len(numbers) > 1:
        raise UsageError(f"%hvd resize: {said} and -np {options.n} are two numbers of ranks: keep one of them")
    if not numbers and not dropped:
        raise UsageError("%hvd resize: say how many ranks there are to be, as in %hvd resize 6, or --drop 0,3")
    n = numbers.pop() if numbers else before - dropped
    if dropped and n > before - dropped:
        few = f"{before - dropped} ranks are left of {before}"
        raise UsageError(f"%hvd resize: without those of --drop {few}, not {n}: drop first, then grow")
    return n
