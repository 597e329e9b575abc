"""Requests of an opening page are answered during a cell, and the kernel still reports the cell as running."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hvdtest.gate import Gate
from hvdtest.kernel import Kernel
from jupyter_server.services.kernels.kernelmanager import MappingKernelManager

pytestmark = [pytest.mark.jupyter, pytest.mark.timeout(240)]
WAIT_S = 60.0
UNTRACKED = MappingKernelManager.untracked_message_types.default_args[0]  # the server announces them to JupyterLab
CELL = """
import ipywidgets
from hvd_kernel.widgets.dashboard import Dashboard
board = Dashboard([0], "cell 7")
board._repr_mimebundle_()
slider = ipywidgets.IntSlider(value=3)
rank = 0
"""
SLOW = """
kernel = get_ipython().kernel
at_once = kernel.shell_handlers["comm_info_request"]
def in_its_time(*request):
    rank = 0
    {arrive}
    {hold}
    return at_once(*request)
kernel.shell_handlers["comm_info_request"] = in_its_time
"""


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[Kernel]:
    with Kernel(tmp_path) as started:
        yield started


def send(kernel: Kernel, kind: str, **content: Any) -> str:
    message = kernel.client.session.msg(kind, content)
    kernel.client.shell_channel.send(message)
    return str(message["header"]["msg_id"])


def heard(kernel: Kernel, asked: str, kind: str) -> dict[str, Any]:
    """Return the messages published for a request, once it is handled and the kernel runs its cell again."""
    found: dict[str, Any] = {}
    states: list[str] = []
    while states != ["busy", "idle", "busy"]:
        message = kernel.client.get_iopub_msg(timeout=WAIT_S)
        if message["parent_header"].get("msg_id") != asked:
            continue
        if message["msg_type"] == "status":
            states.append(message["content"]["execution_state"])
        elif message["msg_type"] == kind:
            found = message["content"]
    return found


def shown(kernel: Kernel, until: str, state: str = "") -> str:
    """Return the state that a page shows, and the server lists, when a request has been dealt with.

    Both pass over the states of requests that no person has asked for.
    """
    done = False
    while not done:
        message = kernel.client.get_iopub_msg(timeout=WAIT_S)
        if message["msg_type"] == "status":
            parent, now = message["parent_header"], message["content"]["execution_state"]
            state = state if parent["msg_type"] in UNTRACKED else now
            done = parent["msg_id"] == until and now == "idle"
    return state


def reply(kernel: Kernel, asked: str) -> dict[str, Any]:
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        message = kernel.client.get_shell_msg(timeout=WAIT_S)
        if message["parent_header"]["msg_id"] == asked:
            return dict(message["content"])
    raise AssertionError("no reply")


def comms(kernel: Kernel, shown: str) -> str:
    return kernel.run(f"print({shown}.comm.comm_id)").text().strip()


def test_opened_page_gets_comms_and_widgets_during_a_cell(kernel: Kernel, tmp_path: Path) -> None:
    kernel.run(CELL)
    panel, slider = comms(kernel, "board._panel"), comms(kernel, "slider")
    with Gate(tmp_path) as gate:
        cell = kernel.start(f"{gate.arrive.replace('{rank}', '0')}\n{gate.hold}\nprint('end')")
        gate.wait_for(0)
        asked = send(kernel, "kernel_info_request")
        assert reply(kernel, asked)["implementation"] == "hvd_kernel"
        heard(kernel, asked, "")
        asked = send(kernel, "comm_info_request", target_name="jupyter.widget")
        told = reply(kernel, asked)
        assert told["status"] == "ok"
        assert {panel, slider} <= set(told["comms"])
        heard(kernel, asked, "")

        for comm in (panel, slider):
            asked = send(kernel, "comm_msg", comm_id=comm, data={"method": "request_state"})
            assert heard(kernel, asked, "comm_msg")["comm_id"] == comm
        asked = send(kernel, "comm_msg", comm_id=panel, data={"method": "custom", "content": "snapshot"})
        state = heard(kernel, asked, "comm_msg")["data"]["state"]
        assert state["snapshot"]["title"] == "cell 7"

        message = kernel.client.session.msg(
            "comm_open", {"comm_id": "c", "target_name": "jupyter.widget.control", "data": {}}
        )
        message["metadata"]["version"] = "1.0.0"
        kernel.client.shell_channel.send(message)
        asked = send(kernel, "comm_msg", comm_id="c", data={"method": "request_states"})
        assert {panel, slider} <= set(heard(kernel, asked, "comm_msg")["data"]["states"])

        message = kernel.client.session.msg("create_subshell_request")
        kernel.client.control_channel.send(message)
        heard(kernel, message["header"]["msg_id"], "")

        send(kernel, "comm_msg", comm_id=slider, data={"method": "update", "state": {"value": 5}})
        for nonsense in ({"data": {}}, {"comm_id": [1], "data": 7}, {"comm_id": panel, "data": {"method": []}}):
            kernel.client.shell_channel.send(kernel.client.session.msg("comm_msg", nonsense))
        asked = send(kernel, "comm_info_request")
        assert reply(kernel, asked)["status"] == "ok", "nonsense has harmed nobody"
    outcome = kernel.finish_rest(cell)
    assert outcome.text() == "end\n", "its output has kept its parent"
    assert kernel.run("print(slider.value)").text() == "5\n", "what changes something has waited for its turn"


def test_opened_page_shows_an_idle_kernel_as_idle(kernel: Kernel, tmp_path: Path) -> None:
    """A page queries comms and a subshell at once: two threads answer, and either may be later."""
    with Gate(tmp_path) as gate:
        kernel.run(SLOW.format(arrive=gate.arrive, hold=gate.hold))
        asked = send(kernel, "comm_info_request")
        gate.wait_for(0)
        message = kernel.client.session.msg("create_subshell_request")
        kernel.client.control_channel.send(message)
        state = shown(kernel, message["header"]["msg_id"])
        gate.open()
        assert shown(kernel, asked, state) == "idle"
