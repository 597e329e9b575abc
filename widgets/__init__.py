"""Widgets that a notebook shows while ranks work; ipywidgets is imported with the first Dashboard, not before."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hvd_kernel.widgets.dashboard import Dashboard

__all__ = ["Dashboard"]


def __getattr__(name: str) -> object:
    if name == "Dashboard":
        from hvd_kernel.widgets.dashboard import Dashboard  # noqa: PLC0415 - the reason for this function

        return Dashboard
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
