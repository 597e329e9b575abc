"""%hvd check: finds the first part of a variable that differs between ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum, auto
from typing import TYPE_CHECKING, NamedTuple

from hvd_kernel.diagnosis import agreement
from hvd_kernel.errors import RanksDiffer, UsageError
from hvd_kernel.formatting.plural import plural
from hvd_kernel.formatting.rank_labels import rank_list
from hvd_kernel.magics.context import Context
from hvd_kernel.magics.options import Options, resolve
from hvd_kernel.settings.lists import entries

if TYPE_CHECKING:
    from hvd_kernel.cluster import Session


Path = tuple[str, ...]


class ComparedPart(NamedTuple):
    """One part of a variable on one rank."""

    digest: str  # "" if values of its type cannot be compared
    text: str  # a short description of the value
    shard: str = ""  # of a distributed tensor: ranks with the same shard hold the same part


Parts = dict[Path, ComparedPart]

MISSING = "missing"
_ALONE = "shards that only one rank holds"
SEEDS = "seeds"
_ANSWER_S = 600.0
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
    answers = session.ask("parts", ranks, {"names": list(names)}, timeout=_ANSWER_S)
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
    that hold the same one.
    """
    differing: dict[Path, dict[int, str]] = {}
    for path in _paths(parts):
        for ranks in _comparable(parts, path):
            digests = {rank: parts[rank][path].digest if path in parts[rank] else MISSING for rank in ranks}
            if len(set(digests.values())) > 1:
                differing.setdefault(path, digests)
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
    kinds = ", ".join(sorted({*unknown.values()}))
    if len(unknown) == total:
        return f"{name} is not compared: {kinds}"
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
    verdict = f"{rank_list(digests)} hold the same shard, and differ" if is_shard else agreement.agreement(digests)
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
