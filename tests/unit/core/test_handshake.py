"""Ranks of different versions are detected before any other message."""

from __future__ import annotations

import pytest

import hvd_kernel
from hvd_kernel.core import topology
from hvd_kernel.core.topology import Peers
from hvd_kernel.errors import ConfigError


def among(*others: bytes) -> Peers:
    """Run as rank 0 of a job whose other ranks send these values."""
    return Peers(0, 1 + len(others), "test", lambda mine: [mine, *others])


def refusal(*others: bytes) -> str:
    with pytest.raises(ConfigError) as caught:
        topology.check_versions(among(*others))
    return str(caught.value)


@pytest.fixture(autouse=True)
def of_version_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hvd_kernel, "__version__", "1.0")


def test_same_version_on_all_ranks() -> None:
    topology.check_versions(among())
    topology.check_versions(among(b"hvd_kernel 1.0", b"hvd_kernel 1.0"))


def test_a_difference_names_every_version_and_its_ranks() -> None:
    assert refusal(b"hvd_kernel 2.0", b"hvd_kernel 1.0", b"hvd_kernel 2.0") == (
        "the ranks run different versions of hvd_kernel: 1.0 on ranks 0,2, 2.0 on ranks 1,3; "
        "install the same one for all."
    )


def test_many_ranks_are_a_span() -> None:
    assert "2.0 on ranks 1-30;" in refusal(*[b"hvd_kernel 2.0"] * 30)


@pytest.mark.parametrize("card", [b"", b"\x02\x00\x00\x00", b"GET / HTTP/1.1", b"hvd_kernel"])
def test_invalid_version_is_named(card: bytes) -> None:
    assert "1.0 on rank 0, an unknown one on rank 1;" in refusal(card)


def test_a_long_or_broken_text_is_cut() -> None:
    assert len(refusal(b"hvd_kernel " + b"\xff9" * 10_000)) < 300
