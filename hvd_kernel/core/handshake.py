"""Handshake of ranks: comparison of their versions of this package, and exchange of their hosts' addresses.

The core compares settings right afterwards. The form of the version message may never change, or ranks of different
versions could not detect the difference.
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


def check_versions(peers: Peers) -> None:
    """Exchange versions with the other ranks, and check that all are the same.

    Raises
    ------
    ConfigError
        The versions differ. Every rank raises the same message, with each version and its ranks.
    """
    version_cards = peers.exchange(_CARD + hvd_kernel.__version__.encode())
    ranks_of: dict[str, list[int]] = {}
    for rank, card in enumerate(version_cards):
        ranks_of.setdefault(_version(card), []).append(rank)
    if len(ranks_of) > 1:
        versions = ", ".join(f"{version} on {rank_list(ranks)}" for version, ranks in ranks_of.items())
        raise ConfigError(f"the ranks run different versions of hvd_kernel: {versions}; install the same one for all.")


def _version(card: bytes) -> str:
    if not card.startswith(_CARD):
        return "an unknown one"
    return card.removeprefix(_CARD).decode(errors="replace")[:_MOST_CHARS]


def cards(peers: Peers, also: network.Card | None = None) -> list[network.Card]:
    """Exchange cards that describe each rank's host, with the entries of ``also``; return the cards of all ranks."""
    card = {"machine": network.machine(), "networks": network.networks(), **(also or {})}
    return [json.loads(data) for data in peers.exchange(json.dumps(card).encode())]
