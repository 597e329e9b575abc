"""The kernel `hvd_kernel` conforms to Jupyter: jupyter_kernel_test's suite, and the features of ipykernel's kernel."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jupyter_kernel_test
import pytest
from hvdtest.gate import Gate
from hvdtest.kernel import Kernel, await_tagged, tagged
from jupyter_kernel_test.msgspec_v5 import validate_message

pytestmark = [pytest.mark.jupyter, pytest.mark.timeout(400)]


class TestSuite(jupyter_kernel_test.KernelTests):
    """The common suite."""

    kernel_name = "hvd_kernel"
    language_name = "python"
    file_extension = ".py"
    code_hello_world = "print('hello, world')"
    code_stderr = "import sys; print('test', file=sys.stderr)"
    completion_samples = [  # noqa: RUF012 - the suite's way
        {"text": "zi", "matches": {"zip"}},
        {"text": "%%hvd", "matches": {"%%hvdrun"}},
        {"text": "%hvdp", "matches": {"%hvdpdb", "%hvdpull", "%hvdpush"}},
        {"text": "%hvdj", "matches": {"%hvdjobs"}},
    ]
    complete_code_samples = ["1", "print('hello')", "def f(x):\n  return x\n\n\n", "%%hvdrun -np 2\nx = 1\n\n"]  # noqa: RUF012
    incomplete_code_samples = ["print('''hello", "def f(x):\n  x"]  # noqa: RUF012
    invalid_code_samples = ["import = 7q"]  # noqa: RUF012
    code_page_something = "zip?"
    code_generate_error = "raise ValueError"
    code_execute_result = [{"code": "1+2", "result": "3"}]  # noqa: RUF012
    code_display_data = [  # noqa: RUF012
        {"code": "from IPython.display import HTML, display; display(HTML('<b>t</b>'))", "mime": "text/html"}
    ]
    code_history_pattern = "1?2*"
    supported_history_operations = ("tail", "range", "search")
    code_inspect_sample = "zip"
    code_clear_output = "from IPython.display import clear_output; clear_output()"

    def execute_helper(self, code: str, timeout: float = 60, **how: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """The suite's, which does not give a busy kernel 0.1 s from one message to the next."""
        identity = self.kc.execute(code=code, **how)
        reply = self.get_non_kernel_info_reply(timeout=timeout)
        assert reply is not None
        validate_message(reply, "execute_reply", identity)
        seen: list[dict[str, Any]] = []
        while not seen or seen[-1]["content"].get("execution_state") != "idle":
            message = self.kc.get_iopub_msg(timeout=timeout)
            if message["parent_header"].get("msg_id") == identity:  # else it is late, of an earlier request
                validate_message(message, message["msg_type"], identity)
                seen.append(message)
        assert seen[0]["content"]["execution_state"] == "busy"
        assert {m["content"]["code"] for m in seen if m["msg_type"] == "execute_input"} <= {code}
        return reply, [m for m in seen if m["msg_type"] not in {"status", "execute_input"}]

    def history_helper(self, *args: object, **histargs: Any) -> dict[str, Any]:
        """The suite's; in the history of a range IPython calls the running session 0."""
        reply = super().history_helper(*args, **histargs)
        for entry in reply["content"]["history"]:
            entry[0] = entry[0] or histargs.get("session", 0)
        return reply


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    with Kernel(tmp_path_factory.mktemp("kernel")) as running:
        yield running


def info(kernel: Kernel) -> dict:
    return kernel.client.kernel_info(reply=True, timeout=60)["content"]


def test_kernel_info_names_the_kernel(kernel: Kernel) -> None:
    content = info(kernel)
    assert content["implementation"] == "hvd_kernel"
    assert "%%hvdrun" in content["banner"]
    assert {"kernel subshells", "debugger"} <= set(content["supported_features"])


def test_kernel_without_ranks_loads_no_torch_mpi_ipyparallel(kernel: Kernel) -> None:
    heavy = "{'torch', 'mpi4py', 'ipyparallel', 'hvd_kernel._native'}"
    assert kernel.run(f"import sys; sorted({heavy} & set(sys.modules))").shown == ["[]"]


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("%%hvdrun --ti", ["--timeout"]),
        ("%%hvdrun -np 4 --pu", ["--push", "--pull"]),
        ("%hvd re", ["restart", "respawn", "resize"]),
        ("%hvdauto of", ["off"]),
    ],
)
def test_completion_of_options(kernel: Kernel, code: str, expected: list[str]) -> None:
    content = kernel.client.complete(code, reply=True, timeout=60)["content"]
    assert [m for m in content["matches"] if m in expected] == expected
    assert len(content["matches"]) == len(expected), content["matches"]


def test_inspection_shows_the_options(kernel: Kernel) -> None:
    content = kernel.client.inspect("%%hvdrun", reply=True, timeout=60)["content"]
    assert "--ranks 0,2-3|::2|all|root" in content["data"]["text/plain"]


def test_a_subshell_answers_while_the_main_shell_works(kernel: Kernel, tmp_path: Path) -> None:
    created = kernel.subshell()
    gate = Gate(tmp_path)
    busy = kernel.start(gate.hold)
    message = kernel.client.session.msg("execute_request", {"code": "6 * 7", "silent": False, "store_history": False})
    message["header"]["subshell_id"] = created
    kernel.client.shell_channel.send(message)
    reply = kernel.client.get_shell_msg(timeout=60)
    gate.open()
    assert reply["parent_header"]["msg_id"] == message["header"]["msg_id"]
    kernel.wait_for("execute_result")
    reply = kernel.client.get_shell_msg(timeout=60)
    assert reply["parent_header"]["msg_id"] == busy[0]


def test_loading_the_extension_again_changes_nothing(kernel: Kernel) -> None:
    outcome = kernel.run("%load_ext hvd_kernel\n%reload_ext hvd_kernel\nlen(get_ipython().input_transformers_cleanup)")
    transformers = int(outcome.shown[0])
    assert kernel.run("len(get_ipython().input_transformers_cleanup)").shown == [str(transformers)]
    assert kernel.run("%hvd").text() == "no ranks are running\n"


@pytest.mark.nightly
def test_debugger_is_available(kernel: Kernel) -> None:
    arguments = {"clientID": "test", "adapterID": "", "supportsRunInTerminalRequest": True, "locale": "en"}
    content = {"type": "request", "seq": 1, "command": "initialize", "arguments": arguments}
    request = kernel.client.session.msg("debug_request", content)
    kernel.client.control_channel.send(request)
    assert kernel.client.control_channel.get_msg(timeout=60)["content"]["success"] is True


@pytest.mark.nightly  # by day a cell runs meanwhile: test_b5 of test_interrupt.py and test_a17 of faults/test_deaths.py
@pytest.mark.parametrize("how", ["shutdown", "restart", "kill"])
def test_ranks_exit_with_the_kernel(tmp_path: Path, how: str) -> None:
    with Kernel(tmp_path) as kernel:
        kernel.run("%%hvdrun -np 2\nx = rank", timeout=150)
        assert len(tagged(kernel.tag)) >= 4
        if how == "restart":
            kernel.restart()
            await_tagged(kernel.tag, 1)
            assert kernel.run("%hvd status").text() == "no ranks are running\n"
        elif how == "kill":
            os.kill(kernel.pid, signal.SIGKILL)
            kernel.assert_nothing_left()
