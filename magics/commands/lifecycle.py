"""Life cycle of the ranks: start, stop, restart, status; keep and attach; respawn and resize; an ipyparallel client."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hvd_kernel import tracking
from hvd_kernel.errors import ClusterError, UsageError
from hvd_kernel.formatting.rank_labels import rank_list
from hvd_kernel.magics import cluster_size
from hvd_kernel.magics.cell_view import watch
from hvd_kernel.magics.cluster_request import NAMES, default_cluster, requested_cluster
from hvd_kernel.magics.context import Context
from hvd_kernel.magics.display.panel_polls import beside
from hvd_kernel.magics.display.user_errors import local_hint, user_errors
from hvd_kernel.magics.display.writer import aligned
from hvd_kernel.magics.interrupts import Interrupted, ending
from hvd_kernel.magics.jobs import BackgroundJob, JobWriter
from hvd_kernel.magics.messages import all_replaced, respawn_interrupted, respawn_outcome
from hvd_kernel.magics.options import Options, resolve
from hvd_kernel.processes import detached
from hvd_kernel.processes.cluster_spec import ClusterSpec
from hvd_kernel.settings import lookup

if TYPE_CHECKING:
    from hvd_kernel.cluster import CellExecution, Session
    from hvd_kernel.magics.cell_view import CellView
    from hvd_kernel.magics.context import Context


def start(context: Context, options: Options) -> None:
    """Start ranks; running ones are kept if they are the requested cluster.

    Example: ``%hvd start -np 4 --gpus 0,1``.

    Raises
    ------
    UsageError
        Variables of running ranks would be lost; ``--force`` allows it.
    ConfigError
        A setting, a host or a GPU cannot be used.
    ClusterError
        The ranks did not start.
    """
    context.manager.respawn = options.respawn or context.manager.respawn
    if context.manager.session is not None and context.manager.session.dead:
        restart(context, options)
        return
    writer, running = context.writer(), context.manager.session
    status = writer.status()
    spec = requested_cluster(options, context.manager.spec or default_cluster(options.gpus))
    check_kept_name(context, options, spec)
    session = context.manager.ensure(spec, lambda text: writer.write(f"{text}\n"), status, force=options.force)
    if session is running or not status.is_shown:  # the progress of a start ends with the same sentence
        _ready(context)
    keep_ranks(context, options)


def restart(context: Context, options: Options) -> None:
    """Start the same ranks again; their variables are lost.

    Example: ``%hvd restart --force``.

    Raises
    ------
    ConfigError
        As ``start``.
    ClusterError
        As ``start``.
    """
    context.manager.respawn = options.respawn or context.manager.respawn
    spec: ClusterSpec = requested_cluster(options, context.manager.spec or default_cluster(options.gpus))
    check_kept_name(context, options, spec)
    writer = context.writer()
    status = writer.status()
    context.manager.start(spec, status, lambda text: writer.write(f"{text}\n"), force=options.force)
    if not status.is_shown:  # the progress of a start ends with the same sentence
        _ready(context)
    keep_ranks(context, options)


def stop(context: Context, _options: Options) -> None:
    """Stop the ranks, if there are any.

    Example: ``%hvd stop``.
    """
    was_running = context.manager.session is not None
    context.manager.stop()
    context.writer().write("the ranks are stopped\n" if was_running else "no ranks were running\n")


def status(context: Context, _options: Options) -> None:
    """Show one line per rank: alive or dead and why, process, host and device.

    Example: ``%hvd status``.
    """
    session = context.manager.session
    if session is None:
        kept = [cluster for cluster in detached.clusters() if cluster.note.place == context.manager.place]
        listed = "".join(f"kept: {cluster.sentence}: `%hvd attach {cluster.note.name}`\n" for cluster in kept)
        context.writer().write(f"no ranks are running\n{listed}")
        return
    writer, ranks = context.writer(), session.status()
    reason = "" if all(r.alive for r in ranks) else "why"
    rows: list[tuple[str, ...]] = [("rank", "state", "pid", "host", "device", reason)]
    rows += [(str(r.rank), "alive" if r.alive else "dead", str(r.pid), r.host, r.device, r.why) for r in ranks]
    writer.write(aligned(rows))
    if session.detached_name:
        writer.write(f"kept as {session.detached_name}: they go on when this kernel ends, `%hvd stop` ends them\n")
    if writer.has_user:  # the number of warm spares differs from run to run
        writer.write(f"{session.spares or 'no'} spare process{'es' * (session.spares != 1)} ready\n")
        if sentence := beside(session):
            writer.write(f"{sentence}\n")


def _ready(context: Context) -> None:
    context.writer().write(f"{rank_list(range(context.manager.current().n))} ready\n")


def check_kept_name(context: Context, options: Options, spec: ClusterSpec) -> None:
    """Check ``--keep`` before a start: refuse a name in use, and ranks of an engine, which end with this kernel.

    Raises
    ------
    UsageError
        Naming the other ranks, or the engine.
    """
    name, session = _kept_name(options), context.manager.session
    if spec.on and name is not None:
        raise UsageError(
            f"--keep: ranks of {NAMES[spec.on]} end with this kernel and cannot be kept: leave out --keep and HVD_KEEP"
        )
    kept = session.detached_name if session is not None else ""
    if not name or kept == name or (kept and options.keep is None):
        return
    if kept:
        raise UsageError(f"--keep {name}: these ranks are kept as {kept} already")
    if others := [cluster for cluster in detached.clusters() if cluster.note.name == name]:
        remedy = f"`%hvd attach {name}` attaches to it, `%hvd clean --kept {name}` ends it"
        raise UsageError(f"--keep {name}: there is {others[0].sentence}; {remedy}")


def keep_ranks(context: Context, options: Options) -> None:
    """Keep the running ranks at the end of this kernel, if the line or HVD_KEEP requests it."""
    session, name = context.manager.current(), _kept_name(options)
    if name is None or session.detached_name:
        return
    session.keep(name or detached.free_name(detached.clusters()), context.manager.place)
    context.writer().write(f"kept as {session.detached_name}: after a restart of this kernel `%hvd attach` has them\n")


def _kept_name(options: Options) -> str | None:
    """Return the name for kept ranks, "" for a generated one; None: do not keep them."""
    if options.keep is not None:
        return options.keep
    setting = lookup.value("HVD_KEEP", os.environ)
    return {"0": None, "1": ""}.get(setting, setting)


def attach(context: Context, options: Options) -> None:
    """Attach to a detached cluster; a cell that its ranks still run becomes a job.

    Example: ``%hvd attach digits``.

    Raises
    ------
    UsageError
        This notebook has ranks already.
    ClusterError
        No detached cluster has that name, or not exactly one is of this folder, or another kernel has it.
    """
    with context.manager.use():
        _check_no_ranks(context)
        name = options.arguments[1] if len(options.arguments) > 1 else ""
        cluster = detached.choose(detached.clusters(), name, context.manager.place)
        session = context.manager.attach(cluster, context.writer().status())
    context.writer().write(_attached_text(session))
    if session.running and session.latest is not None:
        _watch_as_job(context, session, session.latest)


def _check_no_ranks(context: Context) -> None:
    session = context.manager.session
    if session is None:
        return
    if session.detached_name:
        raise UsageError(f"this notebook has {session.detached_name} already: restart its kernel to detach it")
    raise UsageError("this notebook has ranks of its own: `%hvd stop` ends them, then attach")


def _attached_text(session: Session) -> str:
    alive = [status.rank for status in session.status() if status.alive]
    dead = [status for status in session.status() if not status.alive]
    lost = "".join(f"{rank_list([status.rank])} is dead ({status.why}): `%hvd respawn`\n" for status in dead)
    return f"{session.detached_name}: {rank_list(alive)} ready, with all variables\n{lost}" if alive else lost


def _watch_as_job(context: Context, session: Session, execution: CellExecution) -> None:
    """Follow the cell that the ranks still run, as a job."""

    def work(job: BackgroundJob) -> None:
        with user_errors():
            view = watch(session, context.manager, job.writer, lambda: execution, job=job)
            replace_stuck(replace(context, job_writer=job.writer), view)
            view.check(local_hint(context.shell.user_ns))

    job = BackgroundJob(
        context.manager.jobs.name(f"cell{execution.cell}"),
        execution.ranks,
        JobWriter(context.shell),
        work,
        cell=execution.cell,
    )
    verb = "runs" if len(execution.ranks) == 1 else "run"
    earlier = f"what was printed before is in %hvdlogs --cell {execution.cell}"
    context.writer().write(
        f"{rank_list(execution.ranks)} still {verb} cell {execution.cell}, now as a job; {earlier}\n"
    )
    context.manager.start_job(job, lambda: None)


def respawn(context: Context, options: Options) -> None:
    """Replace the ranks of the line, else all dead ones.

    Example: ``%hvd respawn 2 --restore model,opt``.

    Raises
    ------
    UsageError
        A rank does not exist.
    ClusterError
        No ranks are running, all are dead, or a replacement does not start.
    """
    n = context.manager.current().n
    choice = options.arguments[1] if len(options.arguments) > 1 else options.ranks
    ranks = None if choice == "all" and not options.force else resolve(choice, n)
    respawn_ranks(context, ranks, force=options.force, restore=options.restore)


def respawn_ranks(
    context: Context, ranks: Sequence[int] | None = None, *, force: bool = False, restore: Sequence[str] = ()
) -> None:
    """Replace these ranks, or all dead ones, and report which variables the new ranks have."""
    session = context.manager.current()
    try:
        done = session.respawn(ranks, force=force, restore=restore, progress=context.writer().status())
    except KeyboardInterrupt:
        raise Interrupted(respawn_interrupted(session.dead)) from None
    tracking.copy_run(session.ask, session.n, done.ranks)
    for rank in done.ranks:  # a new rank counts its steps from zero
        context.manager.samples.pop(rank, None)
    context.writer().write(respawn_outcome(done))


def respawn_dead(context: Context) -> None:
    """Replace dead ranks before a cell, if the user has enabled it (``--respawn auto``)."""
    session = context.manager.session
    if session is not None and session.dead and context.manager.replaces_dead():
        respawn_ranks(context)


def replace_stuck(context: Context, view: CellView) -> None:
    """Replace the ranks that the third interrupt abandoned, if any; the cell's error reports their fate."""
    if not view.abandoned:
        return
    ranks, was = rank_list(view.left), "was" if len(view.left) == 1 else "were"
    writer = context.writer()
    if writer.has_user:
        writer.write(f"{ending(view.left)}\n", "stderr")
    session = context.manager.current()
    gone = {*view.left, *session.dead}
    if len(gone) == session.n:  # no rank survives to continue with
        context.manager.start(session.spec, context.writer().status(), lambda text: context.writer().write(f"{text}\n"))
        view.fate = all_replaced(view.left)
        return
    try:
        respawn_ranks(context, sorted(gone), force=True)
    except ClusterError as error:
        view.fate = f"{ranks} {was} ended, but not replaced: {error}"
    else:
        view.fate = f"{ranks} {was} ended and replaced, the variables there are lost"


def resize(context: Context, options: Options) -> None:
    """Resize to the number of ranks of the line, or drop the ranks that it names.

    Example: ``%hvd resize 6``.

    Raises
    ------
    UsageError
        The number is wrong, or variables would be lost; ``--force`` allows it.
    ClusterError
        No ranks are running, or new ones do not start.
    """
    manager, writer = context.manager, context.writer()
    session, running = manager.current(), manager.in_cell
    drop = resolve(options.drop, session.n) if options.drop else ()
    n = _requested_size(options, session.n, len(drop))
    if running is not None:
        if drop:
            raise UsageError(
                "%hvd resize: while a cell runs the highest numbers leave: leave out --drop, or wait for it"
            )
        writer.write(f"{running.result().resize(n, options.restore, force=options.force).result()}\n")
        return
    with manager.use(force=options.force):
        cluster_size.resize(
            session,
            manager.samples,
            n,
            lambda text: writer.write(f"{text}\n"),
            writer.status(),
            drop=drop,
            restore=options.restore,
            force=options.force,
        )


def resize_ranks(context: Context, n: int) -> str:
    """Resize to n ranks, while a cell runs at its next commit; return the outcome as a sentence.

    Raises
    ------
    UsageError
        The number is wrong, variables would be lost, or the ranks are busy with another cell.
    ClusterError
        The resize failed.
    """
    if not isinstance(n, int) or isinstance(n, bool) or n < 1:
        raise UsageError(f"{n!r} is not a number of ranks: use 1 or more, as in hvd_kernel.resize(6)")
    manager = context.manager
    if (running := manager.in_cell) is not None:
        return running.result().resize(n).result()
    sentences: list[str] = []
    with manager.use():
        cluster_size.resize(manager.current(), manager.samples, n, sentences.append, lambda _text: None)
    return "\n".join(sentences)


def _requested_size(options: Options, before: int, dropped: int) -> int:
    argument = options.arguments[1] if len(options.arguments) > 1 else ""
    if argument and (not argument.isdecimal() or not int(argument)):
        raise UsageError(f"%hvd resize: {argument!r} is not a number of ranks: write 1 or more, as in %hvd resize 6")
    numbers = {int(argument)} if argument else set()
    numbers |= {options.n} if options.n else set()
    if len(numbers) > 1:
        raise UsageError(f"%hvd resize: {argument} and -np {options.n} are two numbers of ranks: keep one of them")
    if not numbers and not dropped:
        raise UsageError("%hvd resize: the number of ranks is missing: write %hvd resize 6, or --drop 0,3")
    n = numbers.pop() if numbers else before - dropped
    if dropped and n > before - dropped:
        few = f"{before - dropped} ranks are left of {before}"
        raise UsageError(f"%hvd resize: without those of --drop {few}, not {n}: drop first, then grow")
    return n


_CLIENT = "rc"


def client(context: Context, options: Options) -> None:
    """Define a client in the notebook, under a name.

    Example: ``%hvd client rc``.

    Raises
    ------
    UsageError
        The name is not a Python identifier.
    ClusterError
        No ranks are running.
    """
    name = (*options.arguments[1:], _CLIENT)[0]
    if not name.isidentifier():
        raise UsageError(f"%hvd client: {name!r} is not a name of a variable: write %hvd client, or %hvd client NAME")
    context.shell.user_ns[name] = client = connect_client(context)
    context.writer().write(f"{name} is an ipyparallel.Client of ranks {client.ids}; %px and %%px use it\n")


def connect_client(context: Context) -> Any:
    """Return a client that %px and %%px use too; those of an earlier client may address ranks that no longer exist."""
    client = context.manager.current().client()
    client.activate()
    return client
