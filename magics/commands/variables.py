"""Variables of the ranks: %hvdpush and %hvdpull copy them, %hvd vars lists them and which ranks agree."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from IPython.core.interactiveshell import InteractiveShell

from hvd_kernel.diagnosis import agreement
from hvd_kernel.errors import ClusterError, UsageError
from hvd_kernel.formatting.rank_labels import rank_list, spans
from hvd_kernel.magics.context import Context
from hvd_kernel.magics.display.results import PerRank
from hvd_kernel.magics.display.user_errors import user_errors
from hvd_kernel.magics.display.writer import aligned
from hvd_kernel.magics.export import CellRecord, literals
from hvd_kernel.magics.options import Options, names, resolve, says_one_rank
from hvd_kernel.magics.partition import joined

if TYPE_CHECKING:
    from hvd_kernel.cluster import Session


@user_errors()
def push(context: Context, options: Options) -> None:
    """Copy variables of the notebook to the ranks; more than ``HVD_MAX_MOVE`` bytes only with ``--force``.

    Example: ``%hvdpush lr batch --ranks 0,2``.

    Raises
    ------
    UsageError
        No variable is named, one does not exist, or the ranks are busy with a cell.
    ClusterError
        No ranks are running.
    """
    values = local_values(context.shell, tuple(names(options, "%hvdpush")))
    with context.manager.use():
        session = context.manager.current()
        ranks = resolve(options.ranks, session.n)
        session.push(values, ranks, force=options.force)
        some = None if len(ranks) == session.n else ranks
        context.manager.cell_records.append(CellRecord(context.manager.cells.number, "", some, literals(values)))


def local_values(shell: InteractiveShell, names: tuple[str, ...]) -> dict[str, Any]:
    """Return variables of the notebook.

    Raises
    ------
    UsageError
        One does not exist.
    """
    if missing := [name for name in names if name not in shell.user_ns]:
        raise UsageError(f"there is no variable `{missing[0]}` in the notebook to push")
    return {name: shell.user_ns[name] for name in names}


Values = dict[int, dict[str, Any]]
"""Rank -> its variables by name."""

PULL_HELP = (
    "a[0] is rank 0's, list(a) and np.asarray(a) are the values in rank order; with --ranks 2 a is rank 2's value."
)


@user_errors()
def pull(context: Context, options: Options) -> None:
    """Copy variables of the ranks to the notebook: each as a ``PerRank``, or with one rank's number as its plain value.

    Example: ``%hvdpull loss --ranks 2``.

    Raises
    ------
    UsageError
        No variable is named, or the ranks are busy with a cell.
    ClusterError
        No ranks are running, one of them is dead, or has no such variable.
    """
    variables = tuple(names(options, "%hvdpull"))
    with context.manager.use():
        session = context.manager.current()
        ranks = resolve(options.ranks, session.n)
        context.shell.user_ns.update(pulled(session, variables, options, ranks))


def pulled(session: Session, names: tuple[str, ...], options: Options, ranks: tuple[int, ...]) -> dict[str, Any]:
    """Return variables of the ranks: each as a ``PerRank``, or the plain value if ``--ranks`` is one number.

    Raises
    ------
    ClusterError
        One of the ranks is dead, or has no such variable.
    """
    values = _of_all(session, names, options, ranks)
    if says_one_rank(options.ranks):
        return dict(values[ranks[0]])
    return {name: PerRank({rank: values[rank][name] for rank in ranks}) for name in names}


def gathered(
    session: Session, names: tuple[str, ...], options: Options, ranks: tuple[int, ...]
) -> tuple[dict[str, Any], list[UsageError]]:
    """Return variables of the ranks, each joined in rank order, and an error for each that cannot be joined.

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
    """Return the sentence about a variable that only other ranks than the requested ones define."""
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
        remedy = f"--ranks {spans(values)} pulls from the others" if values else "%hvd restart starts new ones"
        raise ClusterError(f"nothing was pulled: {rank_list(lost)} {'is' if len(lost) == 1 else 'are'} dead; {remedy}")
    return values


def _absent(session: Session, names: tuple[str, ...], ranks: tuple[int, ...]) -> str:
    """Return the sentence about the first variable that one of these ranks does not define; "" if there is none."""
    answers = session.ask("known", None, {"names": list(names)})
    for name in names:
        holders = [rank for rank, (content, _) in answers.items() if name in content["known"]]
        if others := [rank for rank in ranks if rank in answers and rank not in holders]:
            return undefined(name, holders, others)
    return ""


Row = Mapping[str, Any]
MAX_CELL = 40
EVERYTHING = 1 << 62
_ANSWER_S = 10.0
_COMPARE_S = 600.0
_COLUMNS = ("type", "shape", "dtype", "value")
BUSY = "the ranks run a cell: values are compared when it has ended\n"


def show_variables(context: Context, options: Options) -> None:
    """Show one line per variable: its type, shape, dtype and value, and which ranks agree on it.

    Example: ``%hvd vars model lr``.

    Raises
    ------
    ClusterError
        No ranks are running.
    """
    session = context.manager.current()
    ranks = resolve(options.ranks, session.n)
    question = {"names": list(options.arguments[1:]), "compare": EVERYTHING}
    # The main thread of a busy rank does not answer; its control thread must not touch objects that the cell uses.
    busy = session.running
    answers = session.ask("variables", ranks, question, timeout=_ANSWER_S if busy else _COMPARE_S, urgent=busy)
    rows = {rank: content["rows"] for rank, (content, _) in answers.items()}
    context.writer().write(
        variables_table(rows) + (BUSY if any(content["busy"] for content, _ in answers.values()) else "")
    )


def variables_table(rows: Mapping[int, Mapping[str, Row]]) -> str:
    """Return the table, sorted by name. Pure."""
    defined = sorted({name for variables in rows.values() for name in variables})
    if not defined:
        return "the ranks have no variables\n"
    lines: list[tuple[str, ...]] = [("name", *_COLUMNS, "ranks")]
    for name in defined:
        holders = {rank: variables[name] for rank, variables in rows.items() if name in variables}
        lines.append(
            (
                name,
                *(_merged(row[column] for row in holders.values()) for column in _COLUMNS),
                _row_agreement(holders, rows),
            )
        )
    return aligned(lines)


def agreement_of(rows: Mapping[int, Row]) -> str:
    """Return whether the ranks that have a variable agree on it; "" if it was not compared."""
    if differs := agreement.difference({rank: _appearance(row) for rank, row in rows.items()}):
        return differs
    digests = {rank: row.get("digest") for rank, row in rows.items()}
    if not all(digests.values()):
        return "not compared" if "" in digests.values() else ""
    kept = {rank: digest for rank, digest in digests.items() if digest}
    verdict = agreement.difference(kept) or agreement.same(len(kept))
    notes = [note for note in ("sampled", "partly") if any(row.get(note) for row in rows.values())]
    return f"{verdict} ({', '.join(notes)})" if notes else verdict


def _row_agreement(holders: Mapping[int, Row], ranks: Mapping[int, object]) -> str:
    if len(holders) == len(ranks):
        return agreement_of(holders)
    place = agreement.where(holders)
    differs = agreement.difference({rank: f"{_appearance(row)} {row.get('digest')}" for rank, row in holders.items()})
    return f"{place}; {differs}" if differs else place


def _appearance(row: Row) -> str:
    return repr([row[column] for column in _COLUMNS])


def _merged(texts: Iterable[str]) -> str:
    different = list(dict.fromkeys(texts))
    text = " | ".join(different)
    return text if len(text) <= MAX_CELL or len(different) == 1 else f"{text[: MAX_CELL - 1]}…"
