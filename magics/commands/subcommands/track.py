"""%hvd track: where ``hvd.log`` writes, and which runs there are."""

from __future__ import annotations

import os
from pathlib import Path

from hvd_kernel import tracking
from hvd_kernel.magics.context import Context
from hvd_kernel.magics.options import Options


def track(context: Context, options: Options) -> None:
    """Choose the tracking services, or list the runs.

    Example: ``%hvd track jsonl tensorboard:runs``.

    Raises
    ------
    ConfigError
        A service is unknown, or cannot be used.
    UsageError
        The ranks are busy with a cell.
    """
    words = options.arguments[1:]
    if not words or words[0] == "show":
        chosen = tracking.commanded(words[1:] or [os.environ.get(tracking.TRACK, "")], Path.cwd())
        context.writer().say(tracking.page(chosen))
        return
    chosen = tracking.commanded(words, Path.cwd(), per_rank=options.per_rank)
    with context.manager.use():
        session = context.manager.session
        dropped = tracking.start_run(session.ask, chosen) if session is not None else ""
        os.environ[tracking.TRACK] = str(chosen)  # of ranks that start later
    context.writer().say(tracking.sentence(chosen))
    context.writer().say(dropped, "stderr")
