"""Variables of the ranks: %hvdpush and %hvdpull copy them, %hvd vars lists them and which ranks agree.

%hvd check finds the first part of a variable that differs between ranks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, NamedTuple

from IPython.core.interactiveshell import InteractiveShell

from hvd_kernel.cluster.requests import joined_tensors
from hvd_kernel.diagnosis import agreement
from hvd_kernel.errors import ClusterError, RanksDiffer, UsageError
from hvd_kernel.formatting.rank_labels import rank_list, spans
from hvd_kernel.formatting.units import decimal_size, plural
from hvd_kernel.magics.context import Context
from hvd_kernel.magics.display.results import PerRank
from hvd_kernel.magics.display.user_errors import user_errors
from hvd_kernel.magics.display.writer import aligned
from hvd_kernel.magics.export import ScriptCell, literals
from hvd_kernel.magics.options import Options, names, resolve, says_one_rank
from hvd_kernel.magics.partition import joined
from hvd_kernel.protocol import distributed_tensors
from hvd_kernel.protocol.distributed_tensors import LOCAL
from hvd_kernel.settings.lists import entries

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
        context.manager.script_cells.append(ScriptCell(context.manager.cells.number, "", some, literals(values)))


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

    A DTensor is joined by its placements.

    Raises
    ------
    ClusterError
        As ``pulled``.
    """
    parts = _of_all(session, names, options, ranks, whole=False)
    whole: dict[str, Any] = {}
    errors: list[UsageError] = []
    for name in names:
        try:
            values = joined_tensors.joined({rank: {name: parts[rank][name]} for rank in ranks})
            if distributed_tensors.is_part(parts[ranks[0]][name]):
                whole[name] = values[ranks[0]][name]
            else:
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


def _of_all(
    session: Session, names: tuple[str, ...], options: Options, ranks: tuple[int, ...], *, whole: bool = True
) -> Values:
    try:
        values = session.pull(names, ranks, force=options.force, whole=whole)
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
SAME_SHARD = "{ranks} hold the same shard, and differ"
OWN_SHARDS = "not compared: each rank has its own shard"
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
        *facts, value = (_merged(row[column] for row in holders.values()) for column in _COLUMNS)
        lines.append((name, *facts, value + _local_size(holders.values()), _row_agreement(holders, rows)))
    return aligned(lines)


def _local_size(rows: Iterable[Row]) -> str:
    """Return the bytes of a distributed tensor on each rank, after its layout."""
    sizes = [row["local"] for row in rows if "local" in row]
    if not sizes:
        return ""
    extremes = dict.fromkeys(decimal_size(size) if size else "0 B" for size in (min(sizes), max(sizes)))
    return f", {' to '.join(extremes)} per rank"


def agreement_of(rows: Mapping[int, Row]) -> str:
    """Return whether the ranks that have a variable agree on it; "" if it was not compared."""
    if differs := agreement.difference({rank: _appearance(row) for rank, row in rows.items()}):
        return differs
    digests = {rank: row.get("digest") for rank, row in rows.items()}
    if not all(digests.values()):
        return "not compared" if "" in digests.values() else ""
    kept = {rank: digest for rank, digest in digests.items() if digest}
    verdict = agreement.difference(kept) or _agreement_of_shards(rows) or agreement.same(len(kept))
    notes = [note for note in ("sampled", "partly") if any(row.get(note) for row in rows.values())]
    return f"{verdict} ({', '.join(notes)})" if notes else verdict


def _agreement_of_shards(rows: Mapping[int, Row]) -> str:
    """Return which ranks differ in a shard that they share, or that ranks do not share them; "" if ranks agree."""
    shards = {shard for row in rows.values() for shard in row.get("shards", ())}
    is_alone = False
    for shard in sorted(shards):
        digests = {rank: row["shards"][shard] for rank, row in rows.items() if shard in row.get("shards", ())}
        if agreement.difference(digests):
            return SAME_SHARD.format(ranks=rank_list(digests))
        is_alone |= len(digests) == 1 < len(rows)
    if not is_alone:
        return ""
    only = all(row.get("only shards") for row in rows.values())
    return OWN_SHARDS if only else f"{OWN_SHARDS}; the rest is the {agreement.same(len(rows))}"


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


Path = tuple[str, ...]


class ComparedPart(NamedTuple):
    """One part of a variable on one rank."""

    digest: str  # "" if values of its type cannot be compared
    text: str  # a short description of the value
    shard: str = ""  # of a distributed tensor: ranks with the same shard hold the same part


Parts = dict[Path, ComparedPart]

MISSING = "missing"
OWN_SHARD_OF = "each rank holds its own shard of {tensors}"
LAYOUTS = "shapes, dtypes, meshes and placements"
_ALONE = "alone"  # a shard that only one rank holds
SEEDS = "seeds"
_AT_ONCE = 1 << 20
"""Elements of one part that are fetched at a time, to compute by how much ranks differ."""

_AT_MOST = 1 << 26


def check(context: Context, options: Options) -> None:
    """Compare the named variables, or all, bit for bit.

    With ``--strict`` a difference is an error, and so is a named variable or a distributed tensor that could not be
    compared completely.

    Example: ``%hvd check model opt seeds --strict``.

    Raises
    ------
    UsageError
        No rank has such a variable.
    RanksDiffer
        With ``--strict``: the first difference, or the first incomplete comparison.
    ClusterError
        No ranks are running.
    """
    session = context.manager.current()
    ranks = resolve(options.ranks, session.n)
    names = [name for word in options.arguments[1:] for name in entries(word)]
    variables = parts_of(session, ranks, names)
    if undefined := [name for name, parts in variables.items() if not parts]:
        raise UsageError(f"%hvd check: no rank has a variable `{undefined[0]}`")
    sentences = {name: compare(session, name, parts, ranks) for name, parts in variables.items()}
    context.writer().write(
        "".join(f"{sentence}\n" for _, sentence in sentences.values()) or "the ranks have no variables\n"
    )
    differing = [
        sentence
        for name, (verdict, sentence) in sentences.items()
        if verdict is CheckVerdict.DIFFERENT
        or (verdict is CheckVerdict.UNKNOWN and (names or _is_sharded(variables[name])))
    ]
    if differing and options.strict:
        raise RanksDiffer(differing[0] + (f" (and {len(differing) - 1} more)" if len(differing) > 1 else ""))


def parts_of(session: Session, ranks: Sequence[int], names: Sequence[str]) -> dict[str, dict[int, Parts]]:
    """Return name -> rank -> parts, for the ranks that define the variable."""
    answers = session.ask("parts", ranks, {"names": list(names)}, timeout=_COMPARE_S)
    variables = {rank: content["parts"] for rank, (content, _) in answers.items()}
    chosen = list(names) or sorted({name for defined in variables.values() for name in defined})
    return {
        name: {
            rank: {tuple(path): ComparedPart(*part) for path, *part in defined[name]}
            for rank, defined in variables.items()
            if defined.get(name) is not None
        }
        for name in chosen
    }


class CheckVerdict(Enum):
    """The verdict of a comparison of ranks."""

    SAME = auto()
    DIFFERENT = auto()
    UNKNOWN = auto()  # no difference, but not all parts were compared


def compare(session: Session, name: str, parts: Mapping[int, Parts], ranks: Sequence[int]) -> tuple[CheckVerdict, str]:
    """Return the verdict on a variable, and the sentence about it."""
    if missing := [rank for rank in ranks if rank not in parts]:
        return CheckVerdict.DIFFERENT, f"{name} does not exist on {rank_list(missing)}"
    differing = differences(parts)
    if not differing:
        unknown = uncompared(parts)
        return CheckVerdict.UNKNOWN if unknown else CheckVerdict.SAME, agreed(name, parts, unknown)
    path, digests = differing[0]
    place = f": first at {'.'.join(path)}" if path else ""
    sentence = f"{name} differs{place}: {_how(session, name, path, digests, parts)}"
    total = len({path for leaves in parts.values() for path in leaves})
    return CheckVerdict.DIFFERENT, sentence + (
        f"; {len(differing)} of {total} parts differ" if len(differing) > 1 else ""
    )


def differences(parts: Mapping[int, Parts]) -> list[tuple[Path, dict[int, str]]]:
    """Return the parts that differ, in the order of the lowest rank, with each rank's digest. Pure.

    A container itself (its kind and length) is omitted if a part inside it differs. Shards are compared among the ranks
    that hold the same one, if they divide the tensor in the same way.
    """
    differing: dict[Path, dict[int, str]] = {}
    for path in _paths(parts):
        for ranks in _comparable(parts, path):
            digests = {rank: parts[rank][path].digest if path in parts[rank] else MISSING for rank in ranks}
            if len(set(digests.values())) > 1:
                differing.setdefault(path, digests)
    for path in [path for path in differing if path and path[-1] == LOCAL and path[:-1] in differing]:
        del differing[path]
    frames = {path[:depth] for path in differing for depth in range(len(path))}
    return [(path, digests) for path, digests in differing.items() if path not in frames]


def uncompared(parts: Mapping[int, Parts]) -> dict[Path, str]:
    """Return the parts that were not compared with another rank, each with its description. Pure.

    These are values of types without a digest, and shards that only one rank holds.
    """
    unknown = {}
    for path in _paths(parts):
        part = next(leaves[path] for leaves in parts.values() if path in leaves)
        if not part.digest:
            unknown[path] = part.text
        elif len(parts) > 1 and min(map(len, _comparable(parts, path))) == 1:
            unknown[path] = _ALONE
    return unknown


def agreed(name: str, parts: Mapping[int, Parts], unknown: Mapping[Path, str]) -> str:
    """Return the sentence about a variable without a difference, parts that were not compared first. Pure."""
    total = len(_paths(parts))
    same = f"the {agreement.same(len(parts))}"
    if not unknown:
        return f"{name} is {same} ({plural(total, 'part')})"
    shards = sum(kind == _ALONE for kind in unknown.values())
    reasons = [OWN_SHARD_OF.format(tensors=plural(shards, "tensor"))] if shards else []
    reasons += sorted({*unknown.values()} - {_ALONE})
    kinds = ", ".join(reasons)
    frames = {path[:depth] for path in _paths(parts) for depth in range(len(path))}
    if not set(_paths(parts)) - unknown.keys() - frames:
        return f"{name} is not compared: {kinds}" + (f"; {LAYOUTS} are {same}" if shards else "")
    rest = "the other is" if total - len(unknown) == 1 else "the others are"
    return f"{name} is not compared in {len(unknown)} of {total} parts ({kinds}); {rest} {same}"


def _paths(parts: Mapping[int, Parts]) -> list[Path]:
    return list(dict.fromkeys(path for leaves in parts.values() for path in leaves))


def _comparable(parts: Mapping[int, Parts], path: Path) -> list[list[int]]:
    """Return groups of ranks whose parts can be compared: all, or those that hold the same shard."""
    by_shard: dict[str, list[int]] = {}
    for rank, leaves in parts.items():
        by_shard.setdefault(leaves[path].shard if path in leaves else "", []).append(rank)
    return list(by_shard.values())


def _is_sharded(parts: Mapping[int, Parts]) -> bool:
    return any(part.shard for leaves in parts.values() for part in leaves.values())


def _how(session: Session, name: str, path: Path, digests: Mapping[int, str], parts: Mapping[int, Parts]) -> str:
    if lacking := [rank for rank, digest in digests.items() if digest == MISSING]:
        return f"{rank_list(lacking)} {'lacks' if len(lacking) == 1 else 'lack'} it"
    is_shard = any(parts[rank][path].shard for rank in digests)
    verdict = SAME_SHARD.format(ranks=rank_list(digests)) if is_shard else agreement.agreement(digests)
    texts = {rank: parts[rank][path].text for rank in digests}
    firsts = [ranks[0] for ranks in agreement.groups(digests)]
    if len(set(texts.values())) > 1:
        descriptions = [f"{rank_list(ranks)}: {texts[ranks[0]]}" for ranks in agreement.groups(digests)]
        return f"{verdict} ({', '.join(descriptions)})"
    apart = (
        "" if name == SEEDS else _distance(session, name, path, firsts)
    )  # differences of random states have no meaning
    return f"{verdict} (max |difference| {apart})" if apart else verdict


def _distance(session: Session, name: str, path: Path, ranks: Sequence[int]) -> str:
    """Return the largest difference between the first rank's elements and the others'; "" if they are not numbers."""
    import numpy as np  # noqa: PLC0415 - a kernel that compares nothing need not load it

    largest = 0.0
    for start in range(0, _AT_MOST, _AT_ONCE):
        question = {"name": name, "path": list(path), "start": start, "stop": start + _AT_ONCE}
        answers = session.ask("elements", ranks, question)
        if not all(buffers for _, buffers in answers.values()):
            return ""
        base, *others = (np.frombuffer(buffers[0], np.float64) for _, buffers in answers.values())
        if not base.size:
            return f"{largest:.2g}" if largest else ""
        with np.errstate(invalid="ignore"):
            alike = [(base == other) | (np.isnan(base) & np.isnan(other)) for other in others]
            apart = [np.where(same, 0, base - other) for same, other in zip(alike, others, strict=True)]
        largest = max(largest, *(float(np.nan_to_num(np.abs(gap), nan=np.inf).max()) for gap in apart))
    return f"{largest:.2g} or more"
