"""Names of operations for people. In the core a name is an identifier that is equal on all ranks. Pure.

Operations of torch.distributed are numbered, so the core's name of one has the group, and its kind comes from the core.
Those of the default group have the shortest names, because the time of a small operation grows with its name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

OTHER_BACKEND = "torch.distributed "
"""Prefix of the names of operations that run on another backend than ours."""

_GROUP = re.compile(r"torch.*?( \(.*\))?\.\d+")
_DEFAULT = " (default group)"
_MESSAGE = re.compile(r"send\.(\d+)to(\d+)\.tag(-?\d+)\.\d+")
_TORCH_KINDS = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "alltoall": "all_to_all",
    "reducescatter": "reduce_scatter",
}


def torch_group_prefix(group: str, members: str = "") -> str:
    """Return the names' common part of the operations of a torch group; without ``members`` of the default group.

    Examples
    --------
    >>> torch_group_prefix("1") + ".7"
    'torch1.7'
    >>> torch_group_prefix("2", "ranks 0,2") + ".7"
    'torch2 (ranks 0,2).7'
    """
    return f"torch{group} ({members})" if members else f"torch{group}"


def operation_label(name: str, kind: str, ranks: Sequence[int] = ()) -> str:
    """Return an operation's name for people; one that the program has chosen is returned unchanged.

    Parameters
    ----------
    name
        The core's name.
    kind
        The core's kind of operation, such as "allreduce".
    ranks
        The ranks of the group by their numbers in it; () if these are equal.

    Examples
    --------
    >>> operation_label("torch1.7", "allreduce")
    'torch all_reduce (default group)'
    >>> operation_label("torch2 (ranks 0,2).7", "allgather")
    'torch all_gather (ranks 0,2)'
    >>> operation_label("send.1to0.tag0.3", "send", ranks=(4, 6))
    'torch send from rank 6 to rank 4'
    >>> operation_label("allreduce.grad", "allreduce")
    'allreduce.grad'
    """
    if match := _GROUP.fullmatch(name):
        return f"torch {_TORCH_KINDS.get(kind, kind)}{match[1] or _DEFAULT}"
    if match := _MESSAGE.fullmatch(name):
        source, destination = (ranks[number] if ranks else number for number in (int(match[1]), int(match[2])))
        tag = "" if match[3] == "0" else f" with tag {match[3]}"
        return f"torch send from rank {source} to rank {destination}{tag}"
    return name
