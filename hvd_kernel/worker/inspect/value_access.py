"""Values of this rank on their way to the notebook and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hvd_kernel.protocol import serialization
from hvd_kernel.worker.inspect import digest

Answer = tuple[dict[str, Any], list[Any]]


def send(variables: Mapping[str, Any], rank: int, content: Mapping[str, Any]) -> Answer:
    """Answer with variables, or with the size of each in bytes when together they are more than ``at_most``."""
    at_most = content["at_most"]
    sizes = {name: digest.weigh(value) for name, value in variables.items()}
    if at_most is not None and sum(sizes.values()) > at_most:  # before anything is copied
        return {"sizes": sizes}, []
    parts = serialization.pack(dict(variables))
    if at_most is not None and serialization.size(parts) > at_most:
        return {"sizes": {name: serialization.size(serialization.pack(value)) for name, value in variables.items()}}, []
    with serialization.reached(content["buffers"].get(str(rank))) as descriptor:
        wire, placed = serialization.put(parts, descriptor)
    return {"placed": placed}, wire


def receive(content: Mapping[str, Any], buffers: list[Any]) -> dict[str, Any] | None:
    """Return what the notebook sends; None where its shared buffer cannot be reached from here."""
    with serialization.reached(content["buffer"]) as descriptor:
        if content["placed"] and descriptor is None:
            return None
        found: dict[str, Any] = serialization.unpack(serialization.collect(buffers, content["placed"], descriptor))
        return found
