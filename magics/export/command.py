"""%hvd export: write the cells that ran on the ranks as a script."""

from __future__ import annotations

from pathlib import Path

from hvd_kernel.errors import ClusterError, UsageError
from hvd_kernel.magics.context import Context
from hvd_kernel.magics.export.script import script
from hvd_kernel.magics.options import Options


def export(context: Context, options: Options) -> None:
    """Write the script, and say what is not in it.

    Example: ``%hvd export train.py``.

    Raises
    ------
    UsageError
        No file is named, it exists and is another's, or a cell cannot be part of a script.
    ClusterError
        All ranks are dead, or none are running.
    """
    path = Path(_named(options)).absolute()
    session, manager = context.manager.current(), context.manager
    if not manager.ran:
        raise UsageError("%hvd export: no cell has run on these ranks yet")
    if path.exists() and not options.force:
        raise UsageError(f"%hvd export: {path} exists: name another file, or add --force")
    living = [rank for rank in range(session.n) if rank not in session.dead][:1]
    if not living:
        raise ClusterError("%hvd export: all ranks are dead; %hvd restart starts fresh ones")
    said = session.ask("frontend", living)[living[0]][0]
    written = script(manager.ran, session.n, path.name, said["api"], said["package"])
    path.write_text(written.text)
    notes = "".join(f"{sentence}\n" for sentence in written.told)
    context.writer().say(f"{notes}{path.name} is written: hvdrun -np {session.n} python {path.name}\n")


def _named(options: Options) -> str:
    if len(options.arguments) != 2:  # noqa: PLR2004 - export and the file
        raise UsageError("%hvd export: name the file, as in %hvd export train.py")
    return options.arguments[1]
