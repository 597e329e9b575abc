"""Replication of variables to a new rank from a living one, over the ring: the notebook's process holds none of it.

Process sets among them are no copies: each comes back as the set of those ranks that all ranks have just registered.

They travel in one piece, so that an optimizer still belongs to its model. A distributed optimizer, which belongs to its
process, is made again there with the same arguments.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from contextlib import suppress
from types import FunctionType
from typing import TYPE_CHECKING, Any

import cloudpickle

from hvd_kernel.core import ops, session
from hvd_kernel.core.process_sets import ProcessSet
from hvd_kernel.frameworks import registry
from hvd_kernel.protocol import replicated, serialization
from hvd_kernel.protocol.main_objects import MainPickler
from hvd_kernel.worker import devices
from hvd_kernel.worker.frontend.names import NAMES
from hvd_kernel.worker.inspect import definitions
from hvd_kernel.worker.inspect.variable_summary import users

if TYPE_CHECKING:
    from hvd_kernel.worker.shell.control import Control

Answer = tuple[dict[str, Any], list[Any]]
Definitions = Mapping[str, Any]
"""Functions and classes of cells by their names."""

_NONE: Definitions = {}
_ABSENT = "is not defined there"
_TRIAL = "cpu"  # a device's memory may have no room for a second copy
_ARCHIVES = {b"PK": "torch"}  # how a framework's archive begins: torch.save writes a zip
_BEFORE_ARRAYS = ("jax",)  # frameworks that are set up before they make an array: what is restored may be their first


def replicated_names(control: Control, _content: Mapping[str, Any], _buffers: list[Any]) -> Answer:
    """Answer what goes to every fresh rank: variables that cells keep, process sets, and definitions of cells."""
    sets = [name for name, value in control.names.items() if isinstance(value, ProcessSet) and not name.startswith("_")]
    return {"names": replicated.names(), "sets": sorted(sets), "definitions": definitions.standing(control)}, []


def restore(control: Control, content: Mapping[str, Any], _buffers: list[Any]) -> Answer:
    """Give the root's variables to the fresh ranks. All ranks do this together.

    The answer's ``lost`` says what a fresh rank did not get, and why. Where a value cannot be made again on one of them
    each is tried alone to find it, and the others travel once more, again in one piece.
    """
    names, root = content["names"], content["root"]
    gives, takes = control.rank == root, control.rank in content["fresh"]
    defined = {name: control.names.get(name) for name in content.get("defined", ())}
    lost: dict[str, str] = {}
    found: dict[str, Any] = {}
    for is_last in (False, True):  # with all values, and without those that could not be made again
        wanted = [name for name in names if name not in lost]
        sent = _pack(control.names, wanted, defined) if gives else None
        packed, absent = ops.broadcast_object(sent, root, name="hvd.restore")
        lost |= absent
        found, why = _loaded(packed) if takes else ({}, "")
        if is_last or not any(ops.allgather_object(bool(why), name="hvd.restore.arrived")):
            break
        alone = _each(control.names, [name for name in wanted if name not in lost], defined) if gives else None
        alone = ops.broadcast_object(alone, root, name="hvd.restore.alone")
        failed = {name: said for name, each in alone.items() if (said := _loaded(each)[1])} if takes else {}
        for told in ops.allgather_object(failed, name="hvd.restore.failed"):
            lost |= told
    if not takes:
        return {"lost": {}}, []
    if why:
        lost = dict.fromkeys(names, why) | lost
    control.names.update(at_home(found, control.names))
    replicated.keep(*content["replicated"])
    return {"lost": lost}, []


def held(control: Control, _content: Mapping[str, Any], _buffers: list[Any]) -> Answer:
    """Answer which variables the user has here, and which of them cells have asked to keep."""
    names = users(control.names)
    return {"names": names, "replicated": [name for name in replicated.names() if name in names]}, []


def pack(control: Control, content: Mapping[str, Any], _buffers: list[Any]) -> Answer:
    """Answer with variables as bytes, for ranks that have not started; ``lost``: what they do not hold, and why.

    They are made again here for a trial: whoever takes them over cannot ask for the others alone, as in ``restore``.
    """
    names = content["names"]
    packed, lost = _pack(control.names, names)
    if _loaded(packed, _TRIAL)[1]:
        alone = _each(control.names, [name for name in names if name not in lost])
        lost |= {name: why for name, each in alone.items() if (why := _loaded(each, _TRIAL)[1])}
        packed, _ = _pack(control.names, [name for name in names if name not in lost])
    return {"lost": lost}, [packed]


def unpack(control: Control, content: Mapping[str, Any], buffers: list[Any]) -> Answer:
    """Take over what another rank has packed; ``lost``: what cannot be made again here, and why."""
    found, why = _loaded(bytes(buffers[0]))
    control.names.update(at_home(found, control.names))
    replicated.keep(*content["replicated"])
    return {"lost": dict.fromkeys(content["replicated"], why) if why else {}}, []


def at_home(found: dict[str, Any], names: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was loaded; cells' functions in it, which bring ``rank`` and ``device`` along, see this rank's."""
    for function in (each for value in found.values() for each in _functions(value)):
        brought = function.__globals__
        if brought.get("__name__") == "__main__" and brought is not names:
            brought.update({name: names[name] for name in NAMES if name in brought and name in names})
    return found


def _functions(value: Any) -> Iterator[FunctionType]:
    of_class = vars(value if isinstance(value, type) else type(value)).values()
    yield from (each for each in (value, *of_class) if isinstance(each, FunctionType))


def _pack(variables: Mapping[str, Any], names: list[str], defined: Definitions = _NONE) -> tuple[bytes, dict[str, str]]:
    """Return the variables as bytes, without those that cannot travel, and why they cannot.

    Functions and classes that are ``defined`` where the bytes arrive travel as their names.
    """
    lost = {name: _ABSENT for name in names if name not in variables}
    values = {name: variables[name] for name in names if name in variables}
    try:
        return _dump(values, defined), lost
    except Exception:  # noqa: BLE001 - whichever it is, the others travel
        lost |= _culprits(values)
    return _dump({name: value for name, value in values.items() if name not in lost}, defined), lost


def _each(variables: Mapping[str, Any], names: list[str], defined: Definitions = _NONE) -> dict[str, bytes]:
    """Return each variable on its own as bytes."""
    return {name: _dump({name: variables[name]}, defined) for name in names}


def _loaded(packed: bytes, device: str | None = None) -> tuple[dict[str, Any], str]:
    """Return what was packed, or why it cannot be made again here."""
    try:
        return _load(packed, device), ""
    except Exception as error:  # noqa: BLE001 - whatever a user's class does when it is made again
        return {}, _said(error)


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


class _Pickler(MainPickler):
    """Has the frameworks take apart what belongs to this process, as a distributed optimizer."""

    defined: Definitions = _NONE

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, type | FunctionType):
            name = obj.__qualname__
            if self.defined.get(name) is obj:
                return name  # by reference: an instance there is one of the class that cells name
        for adapter in registry.in_use():
            reduced = adapter.reduced(obj)
            if reduced is not NotImplemented:
                return reduced
        return super().reducer_override(obj)


def _dump(values: dict[str, Any], defined: Definitions = _NONE) -> bytes:
    file = io.BytesIO()
    pickler = type("_Pickler", (_Pickler,), {"defined": defined})
    for package in _ARCHIVES.values():
        if serialization.loaded(package) is not None:
            registry.adapter(package).write(values, file, pickler)
            return file.getvalue()
    pickler(file, protocol=5).dump(values)
    return file.getvalue()


def _load(packed: bytes, device: str | None = None) -> dict[str, Any]:
    """Return what was packed; its tensors on this rank's device, or on the one that is named."""
    for head, package in _ARCHIVES.items():
        if packed.startswith(head):  # the rank that has packed it uses the framework; this one may not have so far
            adapter = registry.adapter(package)
            there = device or devices.device(package, session.local_rank())
            return adapter.read(io.BytesIO(packed), there)
    for package in _BEFORE_ARRAYS:
        if package.encode() in packed:
            with suppress(ImportError):  # it is not installed here, or too old: what needs it says so
                registry.adapter(package)
    found: dict[str, Any] = cloudpickle.loads(packed)
    registry.settle()  # of what came with it: the next request may ask about the values before a cell runs
    return found
