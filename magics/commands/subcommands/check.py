"""%hvd check: down to the first part of a variable that is not the same on all ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from hvd_kernel.diagnosis import agreement
from hvd_kernel.errors import RanksDiffer, UsageError
from hvd_kernel.formatting.rank_labels import named
from hvd_kernel.magics.context import Context
from hvd_kernel.magics.options import Options, resolve
from hvd_kernel.settings.lists import entries

if TYPE_CHECKING:
    from hvd_kernel.cluster import Session

Path = tuple[str, ...]
Parts = dict[Path, tuple[str, str]]
"""Path of a part -> its digest and, in a word, what it is."""

MISSING = "missing"
SEEDS = "seeds"
_ANSWER_S = 600.0
_AT_ONCE = 1 << 20
"""Elements of one part that are brought here at a time, to say by how much ranks differ."""

_AT_MOST = 1 << 26


def check(context: Context, options: Options) -> None:
    """Compare variables, or all there are, bit for bit; with ``--strict`` a difference is an error.

    Example: ``%hvd check model opt seeds --strict``.

    Raises
    ------
    UsageError
        No rank has such a variable.
    RanksDiffer
        With ``--strict``: the first difference.
    ClusterError
        No ranks are running.
    """
    session = context.manager.current()
    ranks = resolve(options.ranks, session.n)
    names = [name for word in options.arguments[1:] for name in entries(word)]
    found = parts_of(session, ranks, names)
    if nowhere := [name for name, each in found.items() if not each]:
        raise UsageError(f"%hvd check: no rank has a variable `{nowhere[0]}`")
    sentences = {name: compare(session, name, each, ranks) for name, each in found.items()}
    context.writer().say(
        "".join(f"{sentence}\n" for _, sentence in sentences.values()) or "the ranks have no variables\n"
    )
    differing = [sentence for good, sentence in sentences.values() if not good]
    if differing and options.strict:
        raise RanksDiffer(differing[0] + (f" (and {len(differing) - 1} more)" if len(differing) > 1 else ""))


def parts_of(session: Session, ranks: Sequence[int], names: Sequence[str]) -> dict[str, dict[int, Parts]]:
    """Return name -> rank -> parts, of the ranks that have a variable of that name."""
    answers = session.ask("parts", ranks, {"names": list(names)}, timeout=_ANSWER_S)
    told = {rank: content["parts"] for rank, (content, _) in answers.items()}
    every = list(names) or sorted({name for each in told.values() for name in each})
    return {
        name: {
            rank: {tuple(path): (digest, text) for path, digest, text in each[name]}
            for rank, each in told.items()
            if each.get(name) is not None
        }
        for name in every
    }


def compare(session: Session, name: str, parts: Mapping[int, Parts], ranks: Sequence[int]) -> tuple[bool, str]:
    """Return whether the ranks agree on a variable, and the sentence that says so."""
    if missing := [rank for rank in ranks if rank not in parts]:
        return False, f"{name} does not exist on {named(missing)}"
    differing = differences(parts)
    if not differing:
        return True, _agreed(name, parts)
    path, digests = differing[0]
    place = f": first at {'.'.join(path)}" if path else ""
    sentence = f"{name} differs{place}: {_how(session, name, path, digests, parts)}"
    total = len({path for each in parts.values() for path in each})
    return False, sentence + (f"; {len(differing)} of {total} parts differ" if len(differing) > 1 else "")


def differences(parts: Mapping[int, Parts]) -> list[tuple[Path, dict[int, str]]]:
    """Return the parts that differ, in the order of the lowest rank's, with each rank's digest. Pure.

    A container's own frame (its kind and length) is left out where a part inside it says more.
    """
    found = {}
    for path in dict.fromkeys(path for each in parts.values() for path in each):
        digests = {rank: each[path][0] if path in each else MISSING for rank, each in parts.items()}
        if len(set(digests.values())) > 1:
            found[path] = digests
    frames = {path[:depth] for path in found for depth in range(len(path))}
    return [(path, digests) for path, digests in found.items() if path not in frames]


def _agreed(name: str, parts: Mapping[int, Parts]) -> str:
    one = next(iter(parts.values()))
    unknown = sorted({text for digest, text in one.values() if not digest})
    if unknown and not any(digest for digest, _ in one.values()):
        return f"{name} is not compared: {', '.join(unknown)}"
    rest = f"; not compared: {', '.join(unknown)}" if unknown else ""
    return f"{name} is the {agreement.same(len(parts))} ({len(one)} part{'s' * (len(one) != 1)}){rest}"


def _how(session: Session, name: str, path: Path, digests: Mapping[int, str], parts: Mapping[int, Parts]) -> str:
    if lacking := [rank for rank, digest in digests.items() if digest == MISSING]:
        return f"{named(lacking)} {'lacks' if len(lacking) == 1 else 'lack'} it"
    said = agreement.agreement(digests)
    texts = {rank: parts[rank][path][1] for rank in digests}
    firsts = [ranks[0] for ranks in agreement.groups(digests)]
    if len(set(texts.values())) > 1:
        return f"{said} ({', '.join(f'{named(ranks)}: {texts[ranks[0]]}' for ranks in agreement.groups(digests))})"
    apart = "" if name == SEEDS else _distance(session, name, path, firsts)  # of states it would mean nothing
    return f"{said} (max |difference| {apart})" if apart else said


def _distance(session: Session, name: str, path: Path, ranks: Sequence[int]) -> str:
    """Return the largest difference between the first rank's elements and the others'; "" where no numbers are."""
    import numpy as np  # noqa: PLC0415 - a kernel that compares nothing need not load it

    largest = 0.0
    for start in range(0, _AT_MOST, _AT_ONCE):
        asked = {"name": name, "path": list(path), "start": start, "stop": start + _AT_ONCE}
        answers = session.ask("elements", ranks, asked)
        if not all(buffers for _, buffers in answers.values()):
            return ""
        base, *others = (np.frombuffer(buffers[0], np.float64) for _, buffers in answers.values())
        if not base.size:
            return f"{largest:.2g}" if largest else ""
        with np.errstate(invalid="ignore"):
            alike = [(base == other) | (np.isnan(base) & np.isnan(other)) for other in others]
            apart = [np.where(each, 0, base - other) for each, other in zip(alike, others, strict=True)]
        largest = max(largest, *(float(np.nan_to_num(np.abs(each), nan=np.inf).max()) for each in apart))
    return f"{largest:.2g} or more"
