"""%hvdpull: variables of the ranks, brought to the notebook."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from hvd_kernel.errors import ClusterError, UsageError
from hvd_kernel.formatting.rank_labels import rank_list, spans
from hvd_kernel.magics.context import Context
from hvd_kernel.magics.display.results import PerRank
from hvd_kernel.magics.display.user_error import user_errors
from hvd_kernel.magics.options import Options, names, resolve, says_one_rank
from hvd_kernel.magics.partition import joined

if TYPE_CHECKING:
    from hvd_kernel.cluster import Session

Values = dict[int, dict[str, Any]]
"""Of each rank: its variables by their names."""

MORE = "a[0] is rank 0's, list(a) and np.asarray(a) are the values in rank order; with --ranks 2 a is rank 2's value."


@user_errors()
def pull(context: Context, options: Options) -> None:
    """Bring the variables that the line names: each a ``PerRank``, or with one rank's number its plain value.

    Example: ``%hvdpull loss --ranks 2``.

    Raises
    ------
    UsageError
        None is named, or the ranks are busy with a cell.
    ClusterError
        No ranks are running, one of them is dead, or has no such variable.
    """
    found = tuple(names(options, "%hvdpull"))
    with context.manager.use():
        session = context.manager.current()
        ranks = resolve(options.ranks, session.n)
        context.shell.user_ns.update(pulled(session, found, options, ranks))


def pulled(session: Session, names: tuple[str, ...], options: Options, ranks: tuple[int, ...]) -> dict[str, Any]:
    """Return variables of the ranks: one value per rank each, or the plain value where ``--ranks`` says one number.

    Raises
    ------
    ClusterError
        If one of the ranks is dead, or has no such variable.
    """
    values = _of_all(session, names, options, ranks)
    if says_one_rank(options.ranks):
        return dict(values[ranks[0]])
    return {name: PerRank({rank: values[rank][name] for rank in ranks}) for name in names}


def gathered(
    session: Session, names: tuple[str, ...], options: Options, ranks: tuple[int, ...]
) -> tuple[dict[str, Any], list[UsageError]]:
    """Return variables of the ranks, those of one name joined in the order of the ranks, and an error per other name.

    Raises
    ------
    ClusterError
        As ``pulled``.
    """
    values = _of_all(session, names, options, ranks)
    whole: dict[str, Any] = {}
    errors: list[UsageError] = []
    for name in names:
        try:
            whole[name] = joined(name, {rank: values[rank][name] for rank in ranks})
        except UsageError as error:
            errors.append(error)
    return whole, errors


def undefined(name: str, holders: Collection[int], others: Collection[int]) -> str:
    """Say which ranks define a variable that was requested from others."""
    if not holders:
        return f"no rank has a variable `{name}`"
    remedy = f"`%hvdpull {name} --ranks {spans(holders)}`"
    return f"`{name}` is defined on {rank_list(holders)} only, not on {rank_list(others)}: {remedy}"


def _of_all(session: Session, names: tuple[str, ...], options: Options, ranks: tuple[int, ...]) -> Values:
    try:
        values = session.pull(names, ranks, force=options.force)
    except ClusterError as error:
        if sentence := _absent(session, names, ranks):
            raise ClusterError(sentence) from error
        raise
    if lost := [rank for rank in ranks if rank not in values]:
        remedy = f"--ranks {spans(values)} pulls from the others" if values else "%hvd restart starts fresh ones"
        raise ClusterError(f"nothing was pulled: {rank_list(lost)} {'is' if len(lost) == 1 else 'are'} dead; {remedy}")
    return values


def _absent(session: Session, names: tuple[str, ...], ranks: tuple[int, ...]) -> str:
    """Return the sentence on the first variable that one of these ranks does not define; "" if all define all."""
    answers = session.ask("known", None, {"names": list(names)})
    for name in names:
        holders = [rank for rank, (content, _) in answers.items() if name in content["known"]]
        if others := [rank for rank in ranks if rank in answers and rank not in holders]:
            return undefined(name, holders, others)
    return ""
