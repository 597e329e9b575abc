"""Values that a new rank gets from a living one: functions of cells see the rank they are on."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from hvd_kernel.frameworks import registry
from hvd_kernel.worker.inspect import replicate

OPS = "hvd_kernel.core.ops"
CELL = """
def where():
    return rank, device, kept

class Model:
    def place(self):
        return device

model = Model()
"""


def arrived(*wanted: str) -> dict[str, Any]:
    """Return the definitions of rank 0's cell as a rank receives them."""
    names: dict[str, Any] = {"__name__": "__main__", "rank": 0, "device": "cuda:0", "kept": "its own"}
    exec(CELL, names)
    packed = cloudpickle.dumps({name: names[name] for name in wanted})
    found: dict[str, Any] = cloudpickle.loads(packed)
    return found


def test_function_sees_the_rank_it_is_on() -> None:
    found = replicate.rebind(arrived("where"), {"rank": 1, "device": "cuda:1", "kept": "another"})
    assert found["where"]() == (1, "cuda:1", "its own")


def test_methods_of_an_object_see_the_rank_they_are_on() -> None:
    assert replicate.rebind(arrived("model"), {"device": "cuda:1"})["model"].place() == "cuda:1"


def test_module_with_such_a_name_keeps_its_own() -> None:
    function = replicate.rebind
    function.__globals__["device"] = "of the module"
    try:
        replicate.rebind({"function": function}, {"device": "cuda:1"})
        assert function.__globals__["device"] == "of the module"
    finally:
        del function.__globals__["device"]


class Together:
    """Collectives of this many ranks, each a thread."""

    def __init__(self, n: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls = 0
        self._said: list[Any] = [None] * n
        self._rank = threading.local()
        self._barrier = threading.Barrier(n, timeout=30)
        monkeypatch.setattr(f"{OPS}.broadcast_object", lambda value, root, name: self._all(value, name)[root])
        monkeypatch.setattr(f"{OPS}.allgather_object", self._all)

    def _all(self, value: Any, name: str) -> list[Any]:
        self._said[self._rank.number] = value, name
        self._barrier.wait()
        said = list(self._said)
        self._barrier.wait()
        assert {each[1] for each in said} == {name}, "all do the same"
        self.calls += self._rank.number == 0
        return [each[0] for each in said]

    def run(self, controls: list[Any], content: dict[str, Any]) -> list[dict[str, Any]]:
        def work(rank: int) -> dict[str, Any]:
            self._rank.number = rank
            return replicate.restore(controls[rank], content, [])[0]

        with ThreadPoolExecutor(len(controls)) as pool:
            return list(pool.map(work, range(len(controls))))


class Control:
    def __init__(self, rank: int, **names: Any) -> None:
        self.rank, self.names = rank, names


class Fussy:
    """A class that cannot be unpickled."""

    def __reduce__(self) -> Any:
        return _refuse, ("no such device",)


def _refuse(why: str) -> None:
    raise RuntimeError(why)


def given(n: int, monkeypatch: pytest.MonkeyPatch, names: list[str], **values: Any) -> tuple[list[Any], Any, Together]:
    world = Together(n, monkeypatch)
    monkeypatch.setattr("hvd_kernel.protocol.notebook.keep", lambda *_names: None)
    monkeypatch.setattr("hvd_kernel.core.session.local_rank", lambda: 0)  # torch's archives are read for a device
    controls = [Control(0, **values), *(Control(rank) for rank in range(1, n))]
    content = {"names": names, "root": 0, "fresh": list(range(1, n)), "replicated": names}
    return controls, world.run(controls, content), world


def test_value_that_cannot_be_rebuilt_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    model = {"w": [1.0]}
    names = ["model", "fussy", "optimizer", "absent"]
    controls, told, _ = given(3, monkeypatch, names, model=model, fussy=Fussy(), optimizer={"of": model})
    lost = {"absent": "is not defined there", "fussy": "RuntimeError: no such device"}
    assert told == [{"lost": {}}, {"lost": lost}, {"lost": lost}]
    for control in controls[1:]:
        assert sorted(control.names) == ["model", "optimizer"]
        assert control.names["optimizer"]["of"] is control.names["model"], "they still belong together"


def test_values_that_all_unpack_are_sent_once(monkeypatch: pytest.MonkeyPatch) -> None:
    controls, told, world = given(2, monkeypatch, ["a", "b"], a=1, b=[2])
    assert told == [{"lost": {}}, {"lost": {}}]
    assert controls[1].names == {"a": 1, "b": [2]}
    assert world.calls == 2, "the values, and whether all have them"


def test_values_are_not_requested_after_the_last_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values that only cannot be made again together."""
    load = replicate._load

    def one_alone(packed: bytes, device: str | None = None) -> dict[str, Any]:
        found = load(packed, device)
        if len(found) > 1:
            raise RuntimeError("too many")
        return found

    monkeypatch.setattr(replicate, "_load", one_alone)
    controls, told, world = given(2, monkeypatch, ["a", "b"], a=1, b=[2])
    assert told == [{"lost": {}}, {"lost": dict.fromkeys("ab", "RuntimeError: too many")}]
    assert controls[1].names == {}
    assert world.calls == 5, "the values, whether all have them, each alone, who has not; the values"


def test_unrebuildable_values_are_not_packed_for_new_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hvd_kernel.protocol.notebook.keep", lambda *_names: None)
    monkeypatch.setattr("hvd_kernel.core.session.local_rank", lambda: 0)
    model = {"w": [1.0]}
    values = {"model": model, "fussy": Fussy(), "optimizer": {"of": model}}
    told, [packed] = replicate.pack(Control(0, **values), {"names": [*values, "absent"]}, [])
    assert told == {"lost": {"absent": "is not defined there", "fussy": "RuntimeError: no such device"}}
    fresh = Control(0)
    assert replicate.unpack(fresh, {"replicated": ["model", "optimizer"]}, [packed]) == ({"lost": {}}, [])
    assert fresh.names["optimizer"]["of"] is fresh.names["model"], "they still belong together"


def test_values_that_a_new_rank_cannot_unpack_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hvd_kernel.protocol.notebook.keep", lambda *_names: None)
    monkeypatch.setattr("hvd_kernel.core.session.local_rank", lambda: 0)
    packed, lost = replicate._pack({"fussy": Fussy(), "b": 2}, ["fussy", "b"])
    assert not lost
    fresh = Control(0)
    told, _ = replicate.unpack(fresh, {"replicated": ["fussy", "b"]}, [packed])
    assert told == {"lost": dict.fromkeys(["fussy", "b"], "RuntimeError: no such device")}
    assert fresh.names == {}


def test_adapter_is_loaded_with_a_received_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new rank got a variable of TensorFlow's, but loaded no adapter until a cell ran: `%hvd check` differed."""
    (tmp_path / "some_framework.py").write_text("class Tensor:\n    pass\n")
    (tmp_path / "some_adapter.py").write_text(
        "from hvd_kernel.frameworks.adapter import FrameworkAdapter\nADAPTER = FrameworkAdapter()\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(registry._MODULES, "some_framework", "some_adapter")
    import some_framework

    packed = cloudpickle.dumps({"w": some_framework.Tensor()})
    monkeypatch.delitem(sys.modules, "some_framework")
    assert "some_adapter" not in sys.modules
    found = replicate._load(packed)
    adapter = sys.modules.get("some_adapter")
    monkeypatch.delitem(sys.modules, "some_framework")
    monkeypatch.delitem(sys.modules, "some_adapter", raising=False)
    assert type(found["w"]).__name__ == "Tensor"
    assert adapter is not None
