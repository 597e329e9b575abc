"""--keep: ranks that outlive their kernel, under a name by which the next one finds them."""

from __future__ import annotations

import os

from hvd_kernel.errors import UsageError
from hvd_kernel.magics.context import Context
from hvd_kernel.magics.engines.engine_option import NAMES
from hvd_kernel.magics.options import Options
from hvd_kernel.processes import detached
from hvd_kernel.processes.cluster_spec import ClusterSpec
from hvd_kernel.settings import lookup


def check(context: Context, options: Options, spec: ClusterSpec) -> None:
    """Refuse a name that other ranks have, and to keep what ends with this kernel, before anything starts.

    Raises
    ------
    UsageError
        Naming them.
    """
    name, session = _asked(options), context.manager.session
    if spec.on and name is not None:
        raise UsageError(
            f"--keep: {NAMES[spec.on]} ends its ranks with this kernel, which has asked for them: leave --keep (and "
            "HVD_KEEP) out"
        )
    kept = session.detached_name if session is not None else ""
    if not name or kept == name or (kept and options.keep is None):
        return
    if kept:
        raise UsageError(f"--keep {name}: these ranks are kept as {kept} already")
    if others := [each for each in detached.clusters() if each.note.name == name]:
        remedy = f"`%hvd attach {name}` takes it over, `%hvd clean --kept {name}` ends it"
        raise UsageError(f"--keep {name}: there is {others[0].sentence}; {remedy}")


def keep(context: Context, options: Options) -> None:
    """Keep the running ranks, where the line or a setting asks for it."""
    session, name = context.manager.current(), _asked(options)
    if name is None or session.detached_name:
        return
    session.keep(name or detached.free_name(detached.clusters()), context.manager.place)
    context.writer().say(f"kept as {session.detached_name}: after a restart of this kernel `%hvd attach` has them\n")


def _asked(options: Options) -> str | None:
    """Return the name under which ranks are to be kept, "" for one of its own; None: they are not."""
    if options.keep is not None:
        return options.keep
    said = lookup.value("HVD_KEEP", os.environ)
    return {"0": None, "1": ""}.get(said, said)
