"""%hvdpdb: lines for ranks that wait at a prompt."""

from __future__ import annotations

from hvd_kernel.errors import UsageError
from hvd_kernel.formatting.rank_labels import rank_list
from hvd_kernel.magics.context import Context
from hvd_kernel.magics.display.user_error import user_errors
from hvd_kernel.magics.options import Options, resolve

LOOK_S = 3.0
"""How long %hvdpdb waits for ranks to come to their next prompt."""

MORE = """\
Without a line it shows who waits, and at what. It is for prompts of jobs (%%hvdrun --bg), and from a subshell. Under a
cell that runs, answer at its prompt; there ``@0,2 n`` and ``@all n`` are for several ranks."""

_NO_PROMPT = "%hvdpdb: no rank waits at a prompt: breakpoint() or input() in a cell opens one"


@user_errors()
def pdb(context: Context, options: Options) -> None:
    """Send the line's text, if there is one, and show what the ranks answer within three seconds.

    Example: ``%hvdpdb --ranks 0,2 p loss``.

    Raises
    ------
    UsageError
        No rank, or none of those that the line names, waits at a prompt.
    """
    prompts = context.manager.prompts
    there = prompts.waiting() if prompts is not None else {}
    if prompts is None or not there:
        raise UsageError(_NO_PROMPT)
    ranks = resolve(options.ranks, context.manager.current().n) if options.ranks != "all" else tuple(there)
    if absent := sorted(set(ranks) - set(there)):
        raise UsageError(f"%hvdpdb: no prompt on {rank_list(absent)}: choose from {rank_list(there)}")
    if options.text:
        prompts.cast(ranks, options.text)
    context.writer().say(prompts.look(ranks, LOOK_S))
