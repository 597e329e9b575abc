"""The messages of front ends that are not JupyterLab's, replayed, and the limits under which a hub starts a kernel."""

from __future__ import annotations

import os
import re
import resource
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hvdtest.kernel import Kernel, Outcome

pytestmark = [pytest.mark.jupyter, pytest.mark.mp, pytest.mark.nightly, pytest.mark.timeout(400)]

TRAIN = "%%hvdrun -np 2\nimport time\nfor step in range(24):\n    hvd.log(loss=1 / (1 + step))\n    time.sleep(0.05)\n"
TRAIN += "print('trained')\nhvd.size()"


@dataclass(frozen=True)
class FrontEnd:
    """The behaviour of a front end: contents of its requests, and its further requests beside the cells."""

    execute: dict[str, Any]
    metadata: dict[str, Any] = field(default_factory=dict)
    beside: tuple[tuple[str, dict[str, Any]], ...] = ()


COMMS = ("comm_info_request", {"target_name": "jupyter.widget"})
SILENT = (
    "execute_request",
    {
        "code": "import sys as _sys\nlen(_sys.modules)",
        "silent": True,
        "store_history": False,
        "user_expressions": {"here": "1 + 1"},
        "allow_stdin": False,
    },
)
FRONT_ENDS = {
    "Notebook 7": FrontEnd(
        {"silent": False, "store_history": True, "allow_stdin": True, "stop_on_error": True, "user_expressions": {}},
        {"deletedCells": [], "recordTiming": True, "cellId": "4a1b", "trusted": True},
        (COMMS, ("complete_request", {"code": "%%hvd", "cursor_pos": 5})),
    ),
    "VS Code": FrontEnd(  # it looks at variables by silent cells, and has no widget of ours unless one is installed
        {"silent": False, "store_history": True, "allow_stdin": True, "stop_on_error": False},
        {"cellId": "vscode-notebook-cell:/work/a.ipynb#W0sZmlsZQ=="},
        (SILENT, ("inspect_request", {"code": "rank", "cursor_pos": 4, "detail_level": 0}), COMMS),
    ),
    "Colab": FrontEnd(  # it opens comms of its own, and asks for values with each cell
        {"silent": False, "store_history": True, "allow_stdin": True, "user_expressions": {"n": "1 + 1"}},
        {"colab": {"base_uri": "https://localhost:8080/"}},
        (
            ("comm_open", {"comm_id": "c0", "target_name": "colab_comm", "data": {}}),
            ("comm_msg", {"comm_id": "gone", "data": {"method": "update"}}),
            SILENT,
        ),
    ),
    "nbclient": FrontEnd({"silent": False, "store_history": True, "allow_stdin": False, "stop_on_error": True}),
    "nbval": FrontEnd({"silent": False, "store_history": False, "allow_stdin": False, "stop_on_error": True}),
}


def asked(kernel: Kernel, kind: str, content: dict[str, Any], metadata: dict[str, Any] | None = None) -> str:
    message = kernel.client.session.msg(kind, content, metadata=metadata)
    kernel.client.shell_channel.send(message)
    identity: str = message["header"]["msg_id"]
    return identity


def ran(kernel: Kernel, front_end: FrontEnd, code: str) -> Outcome:
    """Run a cell, with the requests that the front end sends before it and during it."""
    for kind, content in front_end.beside:
        identity = asked(kernel, kind, content)
        if kind.endswith("_request"):
            assert kernel._reply(identity, time.monotonic() + 60)["status"] == "ok"
    identity = asked(kernel, "execute_request", {**front_end.execute, "code": code}, front_end.metadata)
    return kernel.finish((identity, time.monotonic()), timeout=150)


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    with Kernel(tmp_path_factory.mktemp("front_ends"), env={"HVD_SPARES": "0"}) as kernel:
        yield kernel


@pytest.mark.parametrize("name", FRONT_ENDS)
def test_training_cell_ends_with_picture_and_text_everywhere(one: Kernel, name: str) -> None:
    outcome = ran(one, FRONT_ENDS[name], TRAIN)
    assert outcome.text() == "[0-1] trained\n"
    assert outcome.text("stderr") == ""
    assert outcome.shown[-1] == "[0-1] 2"
    panels = [each for each in outcome.contents("display_data") if "hvd" in each["metadata"]]
    panels += [each for each in outcome.contents("update_display_data") if "hvd" in each["metadata"]]
    assert panels, "nothing of the panel would be saved"
    for panel in panels:
        assert panel["data"]["text/plain"] == "hvd dashboard: 2 ranks"
        assert panel["data"]["image/svg+xml"].startswith("<svg")
        assert "<script" not in panel["data"]["image/svg+xml"]
    live = FRONT_ENDS[name].execute["allow_stdin"]
    assert any("application/vnd.jupyter.widget-view+json" in panel["data"] for panel in panels) is live
    assert panels[-1]["metadata"]["hvd"]["logged"] == {"loss": pytest.approx(1 / 24, rel=1e-5)}
    after = ran(one, FRONT_ENDS[name], "%hvd status")
    assert [line.split()[1] for line in after.text().splitlines()[1:3]] == ["alive", "alive"]


def test_silent_cell_runs_on_the_ranks_and_is_not_counted(one: Kernel) -> None:
    count = ran(one, FRONT_ENDS["VS Code"], "%%hvdrun -np 2\nseen = 0").reply["execution_count"]
    content = {**SILENT[1], "code": "%%hvdrun\nseen += 1"}
    assert one._reply(asked(one, "execute_request", content), time.monotonic() + 60)["status"] == "ok"
    after = ran(one, FRONT_ENDS["VS Code"], "%%hvdrun\nseen")
    assert after.shown == ["[0-1] 1"]
    assert after.reply["execution_count"] == count + 1


NOWHERE = {"HOME": "/sys", "IPYTHONDIR": "/sys/ipython", "XDG_CACHE_HOME": "", "MPLCONFIGDIR": "/sys/matplotlib"}
"""A home in which no user can create files, not even root."""


def test_read_only_home_and_hub_limits_do_not_break_anything(tmp_path: Path) -> None:
    with Kernel(tmp_path, env=NOWHERE) as kernel:
        for kind, value in ((resource.RLIMIT_AS, 16 << 30), (resource.RLIMIT_NOFILE, 256), (resource.RLIMIT_CORE, 0)):
            resource.prlimit(kernel.pid, kind, (value, value))
        trained = kernel.run(
            "%%hvdrun -np 2\nimport torch\nhvd.log(loss=1.0)\nhvd.allreduce(torch.ones(1), op=hvd.Sum)"
        )
        assert trained.text("stderr") == ""
        assert trained.shown[-1] == "[0-1] tensor([2.])"
        first, *rows = kernel.run("%hvd runs").text().splitlines()
        assert first == "not kept beyond this kernel: IPython's folder cannot be written"
        assert len(rows) == 2
        folder = Path(eval(kernel.run("get_ipython().ipython_dir").shown[0]))
        assert folder.is_dir()
        assert kernel.run("%hvd doctor").text().endswith(("in place\n", "to fix\n"))
    assert not folder.exists()


def shared_by(told: str) -> int:
    """Return the number of ranks of other notebooks in a sentence."""
    cores, others = len(os.sched_getaffinity(0)), int(told.split(maxsplit=1)[0])
    assert told.endswith(f"on this host too: {others + 2} ranks share {cores} core{'s' * (cores != 1)}")
    return others


def test_two_notebooks_on_one_machine_work_and_are_reported(tmp_path: Path) -> None:
    code = "%%hvdrun -np 2\nimport numpy as np, hvd_kernel.numpy as h\n"
    code += "sums = [float(h.allreduce(np.full(1000, 1.0 + rank), op=h.Sum, name=f's{i}')[0]) for i in range(300)]\nset(sums)"
    env = {"HVD_SPARES": "0"}
    with Kernel(tmp_path / "a", env=env) as first, Kernel(tmp_path / "b", env=env) as second:
        begun = [(each, each.start(code)) for each in (first, second)]
        for each, started in begun:
            assert each.finish(started, timeout=150).shown == ["[0-1] {3.0}"]
        told = first.run("%hvd status", prompts=True).text().splitlines()[-1]
        assert shared_by(told) >= 2, "those of the second; of other tests of this machine, too"
        trained = first.run(TRAIN, prompts=True)
        picture = trained.contents("update_display_data")[-1]["data"]["image/svg+xml"]
        (told,) = re.findall(r">([^<]*ranks of other notebooks[^<]*)<", picture)
        assert shared_by(told) >= 2, "in the panel, and in the picture that stays of it"
        second.run("%hvd stop")
        assert first.run(code).shown == ["[0-1] {3.0}"]
