"""What a fresh rank gets from a living one: variables, over the ring, so that the notebook's process holds none of it.

Process sets among them are no copies: each comes back as the set of those ranks that all ranks have just registered.

They travel in one piece, so that an optimizer still belongs to its model. A distributed optimizer, which belongs to its
process, is made again there with the same arguments.
"""

from __future__ import annotations

import io
import sys
import types
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import cloudpickle

from hvd_kernel import kept, ops
from hvd_kernel.process_sets import ProcessSet
from hvd_kernel.worker.variables import users

if TYPE_CHECKING:
    from hvd_kernel.worker.control import Control

Answer = tuple[dict[str, Any], list[Any]]
_ABSENT = "is not defined there"
_BY_TORCH = b"PK"  # torch.save writes a zip


def kept_names(control: Control, _content: Mapping[str, Any], _buffers: list[Any]) -> Answer:
    """Answer which variables cells have asked to keep, and which are process sets: these go to every fresh rank."""
    sets = [name for name, value in control.names.items() if isinstance(value, ProcessSet) and not name.startswith("_")]
    return {"names": kept.names(), "sets": sorted(sets)}, []


def restore(control: Control, content: Mapping[str, Any], _buffers: list[Any]) -> Answer:
    """Give the root's variables to the fresh ranks. All ranks do this together.

    The answer's ``lost`` says what a fresh rank did not get, and why.
    """
    names, root = content["names"], content["root"]
    sent = _pack(control.names, names) if control.rank == root else None
    packed, lost = ops.broadcast_object(sent, root, name="hvd.restore")
    if control.rank not in content["fresh"]:
        return {"lost": {}}, []
    try:
        control.names.update(_load(packed))
    except Exception as error:  # noqa: BLE001 - whatever a user's class does when it is made again
        lost = dict.fromkeys(names, _said(error))
    kept.keep(*content["kept"])
    return {"lost": lost}, []


def held(control: Control, _content: Mapping[str, Any], _buffers: list[Any]) -> Answer:
    """Answer which variables the user has here, and which of them cells have asked to keep."""
    names = users(control.names)
    return {"names": names, "kept": [name for name in kept.names() if name in names]}, []


def pack(control: Control, content: Mapping[str, Any], _buffers: list[Any]) -> Answer:
    """Answer with variables as bytes, for ranks that have not started; ``lost``: what they do not hold, and why."""
    packed, lost = _pack(control.names, content["names"])
    return {"lost": lost}, [packed]


def unpack(control: Control, content: Mapping[str, Any], buffers: list[Any]) -> Answer:
    """Take over what another rank has packed."""
    control.names.update(_load(bytes(buffers[0])))
    kept.keep(*content["kept"])
    return {}, []


def _pack(found: Mapping[str, Any], names: list[str]) -> tuple[bytes, dict[str, str]]:
    """Return the variables as bytes, without those that cannot travel, and why they cannot."""
    lost = {name: _ABSENT for name in names if name not in found}
    values = {name: found[name] for name in names if name in found}
    try:
        return _dump(values), lost
    except Exception:  # noqa: BLE001 - whichever it is, the others travel
        lost |= _culprits(values)
    return _dump({name: value for name, value in values.items() if name not in lost}), lost


def _culprits(values: dict[str, Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in values.items():
        try:
            _dump({name: value})
        except Exception as error:  # noqa: BLE001 - it is the user's object
            found[name] = _said(error)
    return found


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Takes a distributed optimizer apart into its arguments."""

    def reducer_override(self, obj: Any) -> Any:
        optimizers = sys.modules.get("hvd_kernel.torch.again")
        apart = None if optimizers is None else optimizers.apart(obj)
        return super().reducer_override(obj) if apart is None else apart


_MODULE = types.SimpleNamespace(  # what torch.save wants of a pickle module
    Pickler=_Pickler, dump=cloudpickle.dump, dumps=cloudpickle.dumps, __name__="cloudpickle"
)


def _dump(values: dict[str, Any]) -> bytes:
    file = io.BytesIO()
    if "torch" not in sys.modules:
        _Pickler(file, protocol=5).dump(values)
        return file.getvalue()
    import torch  # noqa: PLC0415 - only where it is in use

    import hvd_kernel.torch.again  # noqa: F401, PLC0415 - for the pickler

    torch.save(values, file, pickle_module=_MODULE, pickle_protocol=5)
    return file.getvalue()


def _load(packed: bytes) -> dict[str, Any]:
    if not packed.startswith(_BY_TORCH):
        found: dict[str, Any] = cloudpickle.loads(packed)
        return found
    import torch  # noqa: PLC0415 - the rank that has packed it uses it; this one may not have so far

    loaded: dict[str, Any] = torch.load(io.BytesIO(packed), map_location=_mine, weights_only=False)
    return loaded


def _mine(storage: Any, location: str) -> Any:
    """Put what was on the sender's device on this rank's own."""
    from hvd_kernel import _session  # noqa: PLC0415 - beside torch
    from hvd_kernel.worker.devices import torch_device  # noqa: PLC0415 - beside torch

    return storage.to(device=torch_device(_session.local_rank())) if location.startswith("cuda") else storage
