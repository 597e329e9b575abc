"""``run`` on the ranks of the notebook: a cell without a cell. What they print and report is shown as a cell's is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from hvd_kernel.errors import RankDied
from hvd_kernel.launch.run.arguments import Asked
from hvd_kernel.launch.run.call import Answer, Errand
from hvd_kernel.launch.run.in_processes import failure
from hvd_kernel.magics import holder_of, load_ipython_extension
from hvd_kernel.magics.commands.hvdrun import drive
from hvd_kernel.magics.display.rank_failures import RankError
from hvd_kernel.magics.display.writer import Screen

if TYPE_CHECKING:
    from hvd_kernel.cluster import Session
    from hvd_kernel.magics.cluster_manager import Holder

_NAME = "__hvd_errand__"


def in_notebook(shell: Any, call: bytes, asked: Asked) -> list[Any] | None:
    """Return the values in rank order; None: these ranks are others than those that are wanted.

    Raises
    ------
    RankFailed
        The function raised on a rank, which is named; its exception is the cause.
    """
    load_ipython_extension(shell)  # `%hvd stop` ends the ranks that stay
    holder = holder_of(shell)
    assert holder is not None
    with holder.use():
        spec = asked.spec(holder.spec)
        if asked.reuse is not True and holder.spec not in {None, spec}:
            return None  # the user's variables are on ranks of another kind
        screen = Screen(shell)
        session = holder.ensure(spec, lambda text: screen.say(f"{text}\n"), screen.status())
        return _values(session, holder, screen, call)


def _values(session: Session, holder: Holder, screen: Screen, call: bytes) -> list[Any]:
    ranks = tuple(range(session.n))
    session.push({_NAME: Errand(call)})
    watch, _run, _renderer = drive(session, holder, screen, f"{_NAME}.perform()", ranks)
    try:
        watch.check(lambda _name: False)
    except RankError as shown:
        _fail(session, shown)
    answers = _answers(session, ranks)
    session.push({_NAME: None})  # values may be large
    if not all(answer.connected for answer in answers):
        session.renew()  # the function ended with hvd.shutdown(), as scripts do
    return [answer.result() for answer in answers]


def _fail(session: Session, shown: RankError) -> NoReturn:
    """Raise the root cause of what the ranks raised: the exception itself, where its rank still has it."""
    if shown.rank in session.dead:
        raise RankDied(str(shown), shown.rank) from None
    (answer,) = _answers(session, (shown.rank,))
    if not answer.kind:
        raise shown  # it was ended before the function had begun, or after it had returned
    raise failure(shown.rank, session.n, answer) from answer.exception()


def _answers(session: Session, ranks: Sequence[int]) -> list[Answer]:
    pulled = session.pull([_NAME], ranks)
    return [pulled[rank][_NAME].answer or Answer() for rank in ranks]
