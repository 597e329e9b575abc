"""Memory of a detached cluster: what a kernel has the supervisor remember, the table with which the next one begins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import msgspec

from hvd_kernel.cluster.ranks.rank_table import RankTable
from hvd_kernel.cluster.ranks.status import RankStatus
from hvd_kernel.processes.cluster_spec import ClusterSpec
from hvd_kernel.processes.lifetime import mark

_SETS = ("here", "by_launcher", "bare")


def remembered(spec: ClusterSpec, ranks: RankTable, causes: Mapping[int, str]) -> dict[str, Any]:
    """Return what the next kernel has to know; ``causes``: what the dead died of."""
    members = {rank: asdict(who) | {"mark": mark(who.pid)} for rank, who in ranks.members.items()}
    sets = {name: sorted(getattr(ranks, name)) for name in _SETS}
    return {"spec": asdict(spec), "members": members, "causes": dict(causes), "identities": ranks.identities, **sets}


def restored(state: Mapping[str, Any], host: str) -> tuple[ClusterSpec, RankTable, dict[int, str]]:
    """Return specification, ranks and causes; ranks of this host whose process is another by now are dead."""
    spec = msgspec.convert(state["spec"], ClusterSpec)
    ranks = RankTable(spec.n, host)
    for name in _SETS:
        setattr(ranks, name, set(state[name]))
    for rank, who in ((int(rank), dict(who)) for rank, who in state["members"].items()):
        if who.pop("mark") != mark(who["pid"]) and rank in ranks.here:
            ranks.dead.add(rank)
        ranks.members[rank] = RankStatus(**who)
    ranks.identities = state["identities"]
    ranks.generation = max((who.since for who in ranks.members.values()), default=0)
    return spec, ranks, {int(rank): why for rank, why in state["causes"].items()}
