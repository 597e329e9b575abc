"""Handshake of ranks: which version of this package they run, and their hosts' addresses.

Settings are compared by the core, right after. How the version is said may never change its form, or ranks of
different versions could not tell that they are.
"""

from __future__ import annotations

import json

import hvd_kernel
from hvd_kernel.core.topology import Peers
from hvd_kernel.errors import ConfigError
from hvd_kernel.formatting.rank_labels import rank_list
from hvd_kernel.settings import network

_CARD = b"hvd_kernel "
_MOST_CHARS = 80


def same_version(peers: Peers) -> None:
    """Tell the other ranks this one's version and hear theirs.

    Raises
    ------
    ConfigError
        They are not all the same: on every rank, with the same message, that has every version and its ranks.
    """
    said = peers.exchange(_CARD + hvd_kernel.__version__.encode())
    ranks_of: dict[str, list[int]] = {}
    for rank, card in enumerate(said):
        ranks_of.setdefault(_version(card), []).append(rank)
    if len(ranks_of) > 1:
        found = ", ".join(f"{version} on {rank_list(ranks)}" for version, ranks in ranks_of.items())
        raise ConfigError(f"the ranks run different versions of hvd_kernel: {found}; install the same one for all.")


def _version(card: bytes) -> str:
    if not card.startswith(_CARD):
        return "an unknown one"
    return card.removeprefix(_CARD).decode(errors="replace")[:_MOST_CHARS]


def cards(peers: Peers, also: network.Card | None = None) -> list[network.Card]:
    """Tell the other ranks of this host, and what else they are to know, by a card; return the cards of all."""
    own = {"machine": network.machine(), "networks": network.networks(), **(also or {})}
    return [json.loads(card) for card in peers.exchange(json.dumps(own).encode())]
