"""What a fresh rank gets from a living one: functions of cells see the rank that they are on."""

from __future__ import annotations

from typing import Any

import cloudpickle

from hvd_kernel.worker.inspect import replicate

CELL = """
def where():
    return rank, device, kept

class Model:
    def place(self):
        return device

model = Model()
"""


def arrived(*wanted: str) -> dict[str, Any]:
    """What rank 0's cell has defined, as it comes to a rank."""
    names: dict[str, Any] = {"__name__": "__main__", "rank": 0, "device": "cuda:0", "kept": "its own"}
    exec(CELL, names)
    packed = cloudpickle.dumps({name: names[name] for name in wanted})
    found: dict[str, Any] = cloudpickle.loads(packed)
    return found


def test_a_function_sees_the_rank_that_it_is_on() -> None:
    found = replicate.at_home(arrived("where"), {"rank": 1, "device": "cuda:1", "kept": "another"})
    assert found["where"]() == (1, "cuda:1", "its own")


def test_so_do_the_methods_of_an_object() -> None:
    assert replicate.at_home(arrived("model"), {"device": "cuda:1"})["model"].place() == "cuda:1"


def test_a_module_that_has_such_a_name_keeps_its_own() -> None:
    function = replicate.at_home
    function.__globals__["device"] = "of the module"
    try:
        replicate.at_home({"function": function}, {"device": "cuda:1"})
        assert function.__globals__["device"] == "of the module"
    finally:
        del function.__globals__["device"]
