"""%hvd bench: what allreduce gives on this machine, ours beside others and the limit."""

from __future__ import annotations

from hvd_kernel.magics.cluster_request import default_n
from hvd_kernel.magics.context import Context
from hvd_kernel.magics.options import Options
from hvd_kernel.processes.resources.measurement import measure

_FEWEST = 2


def bench(context: Context, options: Options) -> None:
    """Measure in processes of its own, as many as there are ranks, while these are idle; show a table and a picture.

    Example: ``%hvd bench -np 4``.

    Raises
    ------
    ClusterError
        A rank has failed, or has got wrong values.
    """
    session, writer = context.manager.session, context.writer()
    ranks = max(_FEWEST, options.n or (session.n if session is not None else default_n()))
    writer.status()(f"measuring with {ranks} processes, about half a minute")
    found = measure(ranks)
    writer.show({"image/svg+xml": found.svg, "text/plain": f"hvd bench: {ranks} ranks"})
    writer.say(str(found))
