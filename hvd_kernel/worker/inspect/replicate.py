"""Replication of variables from a living rank to a new one, by a collective: the notebook's process holds no copy.

Process sets are not copied: each is replaced by the set of the same ranks that all ranks have just registered.

All variables are sent as one object, so that an optimizer still belongs to its model. A distributed optimizer, which
belongs to its process, is created again with the same arguments.
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
from hvd_kernel.protocol import modules, notebook
from hvd_kernel.protocol.main_objects import MainPickler
from hvd_kernel.worker import devices
from hvd_kernel.worker.inspect import definitions
from hvd_kernel.worker.inspect.variables import users
from hvd_kernel.worker.names import NAMES

if TYPE_CHECKING:
    from hvd_kernel.worker.shell.control import Control

Answer = tuple[dict[str, Any], list[Any]]
Definitions = Mapping[str, Any]
"""Functions and classes of cells by their names."""

_NONE: Definitions = {}
_ABSENT = "is not defined there"
_TRIAL = "cpu"  # a device's memory may have no room for a second copy
_ARCHIVES = {b"PK": "torch"}  # first bytes of a framework's archive: torch.save writes a zip
_BEFORE_ARRAYS = ("jax",)  # frameworks to set up before their first array, which may be a restored one


def replicated_names(control: Control, _content: Mapping[str, Any], _buffers: list[Any]) -> Answer:
    """Answer what every new rank gets: variables that cells keep, process sets, and definitions of cells."""
    sets = [name for name, value in control.names.items() if isinstance(value, ProcessSet) and not name.startswith("_")]
    return {"names": notebook.kept_names(), "sets": sorted(sets), "definitions": definitions.standing(control)}, []


def restore(control: Control, content: Mapping[str, Any], _buffers: list[Any]) -> Answer:
    """Copy the root's variables to the new ranks. All ranks do this together.

    The answer's ``lost`` maps variables that a new rank did not get to the reason. If a value cannot be unpickled on
    one of them, each is tried alone to find it, and the remaining ones are sent again as one object.
    """
    names, root = content["names"], content["root"]
    is_root, is_fresh = control.rank == root, control.rank in content["fresh"]
    defined = {name: control.names.get(name) for name in content.get("defined", ())}
    lost: dict[str, str] = {}
    values: dict[str, Any] = {}
    for is_last in (False, True):  # with all values, and without those that could not be unpickled
        remaining = [name for name in names if name not in lost]
        sent = _pack(control.names, remaining, defined) if is_root else None
        packed, absent = ops.broadcast_object(sent, root, name="hvd.restore")
        lost |= absent
        values, failure = _loaded(packed) if is_fresh else ({}, "")
        if is_last or not any(ops.allgather_object(bool(failure), name="hvd.restore.arrived")):
            break
        suspects = [name for name in remaining if name not in lost]
        single = _pack_singly(control.names, suspects, defined) if is_root else None
        single = ops.broadcast_object(single, root, name="hvd.restore.alone")
        for failures in ops.allgather_object(_failures(single) if is_fresh else {}, name="hvd.restore.failed"):
            lost |= failures
    if not is_fresh:
        return {"lost": {}}, []
    if failure:
        lost = dict.fromkeys(names, failure) | lost
    control.names.update(rebind(values, control.names))
    notebook.keep(*content["replicated"])
    return {"lost": lost}, []


def held(control: Control, _content: Mapping[str, Any], _buffers: list[Any]) -> Answer:
    """Answer the names of the user's variables, and of those that cells keep."""
    names = users(control.names)
    return {"names": names, "replicated": [name for name in notebook.kept_names() if name in names]}, []


def pack(control: Control, content: Mapping[str, Any], _buffers: list[Any]) -> Answer:
    """Answer with pickled variables, for ranks that have not started; ``lost`` maps missing ones to the reason.

    They are unpickled here as a test: the receiving rank cannot request the values one by one, as ``restore`` does.
    """
    names = content["names"]
    packed, lost = _pack(control.names, names)
    if _loaded(packed, _TRIAL)[1]:
        lost |= _failures(_pack_singly(control.names, [name for name in names if name not in lost]), _TRIAL)
        packed, _ = _pack(control.names, [name for name in names if name not in lost])
    return {"lost": lost}, [packed]


def unpack(control: Control, content: Mapping[str, Any], buffers: list[Any]) -> Answer:
    """Define the variables that another rank has packed; ``lost`` maps those that cannot be unpickled to the reason."""
    values, failure = _loaded(bytes(buffers[0]))
    control.names.update(rebind(values, control.names))
    notebook.keep(*content["replicated"])
    return {"lost": dict.fromkeys(content["replicated"], failure) if failure else {}}, []


def rebind(values: dict[str, Any], names: Mapping[str, Any]) -> dict[str, Any]:
    """Return loaded values, with ``rank``, ``device`` etc. in the globals of cells' functions set to this rank's."""
    for function in (function for value in values.values() for function in _functions(value)):
        copied = function.__globals__
        if copied.get("__name__") == "__main__" and copied is not names:
            copied.update({name: names[name] for name in NAMES if name in copied and name in names})
    return values


def _functions(value: Any) -> Iterator[FunctionType]:
    of_class = vars(value if isinstance(value, type) else type(value)).values()
    yield from (member for member in (value, *of_class) if isinstance(member, FunctionType))


def _pack(variables: Mapping[str, Any], names: list[str], defined: Definitions = _NONE) -> tuple[bytes, dict[str, str]]:
    """Return pickled variables without those that cannot be pickled, and the reasons for these.

    Functions and classes that are ``defined`` on the receiving rank are pickled by name.
    """
    lost = {name: _ABSENT for name in names if name not in variables}
    values = {name: variables[name] for name in names if name in variables}
    try:
        return _dump(values, defined), lost
    except Exception:  # noqa: BLE001 - the remaining values are sent
        lost |= _culprits(values)
    return _dump({name: value for name, value in values.items() if name not in lost}, defined), lost


def _pack_singly(variables: Mapping[str, Any], names: list[str], defined: Definitions = _NONE) -> dict[str, bytes]:
    """Return each variable pickled separately."""
    return {name: _dump({name: variables[name]}, defined) for name in names}


def _loaded(packed: bytes, device: str | None = None) -> tuple[dict[str, Any], str]:
    """Return the unpickled variables, or the reason why they cannot be unpickled here."""
    try:
        return _load(packed, device), ""
    except Exception as error:  # noqa: BLE001 - a user's class may raise anything
        return {}, _description(error)


def _failures(single: Mapping[str, bytes], device: str | None = None) -> dict[str, str]:
    """Return the variables that cannot be unpickled here, with the reasons."""
    outcomes = {name: _loaded(packed, device)[1] for name, packed in single.items()}
    return {name: failure for name, failure in outcomes.items() if failure}


def _culprits(values: dict[str, Any]) -> dict[str, str]:
    failures: dict[str, str] = {}
    for name, value in values.items():
        try:
            _dump({name: value})
        except Exception as error:  # noqa: BLE001 - it is the user's object
            failures[name] = _description(error)
    return failures


def _description(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


class _Pickler(MainPickler):
    """Pickler that lets the frameworks reduce objects that belong to this process, such as a distributed optimizer."""

    defined: Definitions = _NONE

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, type | FunctionType):
            name = obj.__qualname__
            if self.defined.get(name) is obj:
                return name  # by reference, so that instances belong to the class that cells use
        for adapter in registry.in_use():
            reduced = adapter.reduced(obj)
            if reduced is not NotImplemented:
                return reduced
        return super().reducer_override(obj)


def _dump(values: dict[str, Any], defined: Definitions = _NONE) -> bytes:
    file = io.BytesIO()
    pickler = type("_Pickler", (_Pickler,), {"defined": defined})
    for package in _ARCHIVES.values():
        if modules.loaded(package) is not None:
            registry.adapter(package).write(values, file, pickler)
            return file.getvalue()
    pickler(file, protocol=5).dump(values)
    return file.getvalue()


def _load(packed: bytes, device: str | None = None) -> dict[str, Any]:
    """Return the unpickled variables, with tensors on this rank's device or on the given one."""
    for head, package in _ARCHIVES.items():
        if packed.startswith(head):  # the sender uses the framework; this rank may not have imported it
            adapter = registry.adapter(package)
            target = device or devices.device(package, session.local_rank())
            return adapter.read(io.BytesIO(packed), target)
    for package in _BEFORE_ARRAYS:
        if package.encode() in packed:
            with suppress(ImportError):  # not installed here, or too old: unpickling reports it
                registry.adapter(package)
    values: dict[str, Any] = cloudpickle.loads(packed)
    registry.import_adapters()  # of frameworks imported by it: the next request may use the values before a cell runs
    return values
