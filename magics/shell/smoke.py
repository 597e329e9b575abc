"""First try of a cell: on rank 0, as the only rank that there is, before all ranks run it.

Collectives then give what they give on one rank. What the cell does to variables stays, as after any cell: those that
were there before and that it has changed are named, because rank 0 runs it twice and the others once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hvd_kernel.errors import UsageError
from hvd_kernel.magics.cell_driver import drive
from hvd_kernel.magics.context import Context
from hvd_kernel.magics.display.job_output import JobWriter
from hvd_kernel.magics.runner import CellRunner
from hvd_kernel.magics.shell.escalation import replace_stuck

if TYPE_CHECKING:
    from hvd_kernel.cluster import Session

_COMPARED = 1 << 28  # bytes: of larger variables it is not told
_ANSWER_S = 600.0


def run(context: Context, session: Session, code: str, timeout: float | None) -> CellRunner:
    """Run the code on rank 0 alone; what it gives is shown only if it fails.

    Raises
    ------
    UsageError
        There are process sets, of which rank 0 alone can be no member.
    """
    session.make_ready()
    before = _digests(session)
    refused = session.ask("alone", [0])[0][0]["refused"]
    if refused:
        raise UsageError(f"%%hvdrun: --smoke is for cells without process sets, and {refused}: leave out --smoke")
    kept, writer = JobWriter(context.shell), context.writer()
    try:
        watch, _, _ = drive(session, context.manager, kept, code, (0,), timeout=timeout, counts=False)
        replace_stuck(context, watch)
    finally:
        if not session.dead and not session.running:
            session.reset_communicator()
    if watch.failed:
        kept.replay(writer)
        writer.say("the cell has failed on rank 0 alone, the other ranks have not run it\n", "stderr")
    elif changed := _changed(before, _digests(session)):
        one = len(changed) == 1
        text = f"{', '.join(changed)} {'was' if one else 'were'} changed on rank 0 alone, and will be once more"
        writer.say(f"{text}: rank 0 may differ from the others (%hvd check {' '.join(changed)})\n", "stderr")
    return watch


def _digests(session: Session, names: list[str] | None = None) -> dict[str, str]:
    """Return digests of rank 0's variables."""
    asked = {"names": names or [], "compare": _COMPARED}
    rows = session.ask("variables", [0], asked, timeout=_ANSWER_S)[0][0]["rows"]
    return {name: row["digest"] for name, row in rows.items() if row.get("digest")}


def _changed(before: dict[str, str], after: dict[str, str]) -> list[str]:
    return sorted(name for name, was in before.items() if after.get(name, was) != was)
