"""Counts with their noun."""

from __future__ import annotations


def plural(count: int, noun: str) -> str:
    """Return a count and its noun: ``1 rank``, ``3 ranks``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
