"""A session's start: from a supervisor that has just begun to ranks that answer on every channel."""
# ruff: noqa: SLF001 - a part of Session, in a file of its own

from __future__ import annotations

import select
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from hvd_kernel.cluster import failure
from hvd_kernel.cluster.ranks.status import RankStatus
from hvd_kernel.cluster.requests.gather import Handshake
from hvd_kernel.processes.channel import messages

if TYPE_CHECKING:
    from hvd_kernel.cluster.session import Session

_HANDSHAKE_S = 0.25  # between two tries
Say = Callable[[str], None]


def connect(session: Session, say: Say) -> None:
    """Come to know the ranks, and have the session hear of them.

    Raises
    ------
    ClusterError
        They ended, or were not there in time.
    """
    deadline = time.monotonic() + session.spec.start_timeout_s
    while session._stream is None:
        for message in _listen(session, deadline, "the controller"):
            if isinstance(message, messages.Connected):
                session._connect(message.client)
    say("controller ready, ranks are importing")
    _await_ranks(session, say, deadline)
    here = session._launched.local_ranks()
    for rank, who in _shake_hands(session, deadline).items():
        session._ranks[rank] = RankStatus(rank, who["pid"], who["host"], alive=True, device=who["device"])
        if who["pid"] in here:
            session._here.add(rank)
            session._watch(rank, who["pid"])
    session._at_work()
    say(f"{session.n} rank{'s' if session.n != 1 else ''} ready")


def _listen(session: Session, deadline: float, whom: str, wait: float = 3600.0) -> list[messages.Message]:
    left = deadline - time.monotonic()
    if left <= 0:
        reason = f"{whom} did not come up within {session.spec.start_timeout_s:g} s (ClusterSpec.start_timeout_s)."
        raise failure.start_failed(reason, session._launched.log)
    ready, _, _ = select.select([session._launched.descriptor], [], [], min(left, wait))
    received = session._launched.receive() if ready else []
    for message in received:
        if isinstance(message, messages.RankExited | messages.ChannelClosed):
            status = message.status if isinstance(message, messages.RankExited) else "unknown"
            reason = f"the ranks ended while they started (mpiexec's status {status})."
            raise failure.start_failed(reason, session._launched.log)
    return received


def _await_ranks(session: Session, say: Say, deadline: float) -> None:
    known = 0
    while len(session._wire.uuids) < session.n:
        if len(session._wire.uuids) != known:
            known = len(session._wire.uuids)
            say(f"{known} of {session.n} ranks ready")
        missing = sorted(set(range(session.n)) - set(session._wire.uuids))
        _listen(session, deadline, f"rank {', '.join(map(str, missing))}", wait=0.02)


def _shake_hands(session: Session, deadline: float) -> dict[int, Mapping[str, Any]]:
    hands = Handshake(range(session.n))
    while True:
        hands.greet(session._wire.request)
        if hands.wait(_HANDSHAKE_S):
            return hands.introduced
        _listen(session, deadline, f"rank {', '.join(map(str, sorted(hands.missing())))}", wait=0.0)
