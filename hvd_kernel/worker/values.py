"""Values of this rank on their way to the notebook and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hvd_kernel import parcel
from hvd_kernel.worker import digest

Answer = tuple[dict[str, Any], list[Any]]


def send(variables: Mapping[str, Any], rank: int, content: Mapping[str, Any]) -> Answer:
    """Answer with variables, or with the size of each in bytes when together they are more than ``at_most``."""
    at_most = content["at_most"]
    sizes = {name: digest.weigh(value) for name, value in variables.items()}
    if at_most is not None and sum(sizes.values()) > at_most:  # before anything is copied
        return {"sizes": sizes}, []
    parts = parcel.pack(dict(variables))
    if at_most is not None and parcel.size(parts) > at_most:
        return {"sizes": {name: parcel.size(parcel.pack(value)) for name, value in variables.items()}}, []
    with parcel.reached(content["shelves"].get(str(rank))) as descriptor:
        wire, laid = parcel.lay(parts, descriptor)
    return {"laid": laid}, wire


def receive(content: Mapping[str, Any], buffers: list[Any]) -> dict[str, Any] | None:
    """Return what the notebook sends; None where its shelf cannot be reached from here."""
    with parcel.reached(content["shelf"]) as descriptor:
        if content["laid"] and descriptor is None:
            return None
        found: dict[str, Any] = parcel.unpack(parcel.collect(buffers, content["laid"], descriptor))
        return found
