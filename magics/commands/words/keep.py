"""--keep: ranks that outlive their kernel, under a name by which the next one finds them."""

from __future__ import annotations

from hvd_kernel.errors import UsageError
from hvd_kernel.magics.context import Context
from hvd_kernel.magics.options import Options
from hvd_kernel.processes import detached


def check(context: Context, options: Options) -> None:
    """Refuse a name that other ranks have, before anything starts.

    Raises
    ------
    UsageError
        Naming them.
    """
    name, session = options.keep, context.manager.session
    if not name or (session is not None and session.kept == name):
        return
    if session is not None and session.kept:
        raise UsageError(f"--keep {name}: these ranks are kept as {session.kept} already")
    if others := [each for each in detached.clusters() if each.note.name == name]:
        remedy = f"`%hvd attach {name}` takes it over, `%hvd clean --kept {name}` ends it"
        raise UsageError(f"--keep {name}: there is {others[0].sentence}; {remedy}")


def keep(context: Context, options: Options) -> None:
    """Keep the running ranks, where the line asks for it."""
    session = context.manager.current()
    if options.keep is None or session.kept:
        return
    session.keep(options.keep or detached.free_name(detached.clusters()), context.manager.place)
    context.writer().say(f"kept as {session.kept}: after a restart of this kernel `%hvd attach` has them\n")
