"""Plain IPython, without a kernel: the same magics, text instead of widgets, nothing left at the end."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from hvdtest.kernel import await_tagged

pytestmark = [pytest.mark.jupyter, pytest.mark.mp, pytest.mark.timeout(400)]

CELLS = [
    "%load_ext hvd_kernel",
    "%hvd start -np 2",
    "%%hvdrun -np 2\nprint('line of', rank)\nhvd.log(loss=0.5)\nsize",
    "%%hvdrun\nif rank: raise KeyError('lost')",
    "%%hvdrun --bg train -o res\nimport time\nprint('in the back', rank)\nhvd.log(loss=0.25)\ntime.sleep(0.5)\nrank + 40",
    "print('meanwhile', 6 * 7)",
    "%hvdjobs --wait train",
    "%hvdjobs",
    "%hvdjobs train",
    "print(res[1])",
    "%%hvdrun --bg broken\nraise LookupError('gone')",
    "__import__('hvd_kernel.magics').magics.manager_of(get_ipython()).jobs.find('broken').ended.wait()",
    "%hvdauto on",
    "rank + 1",
    "%hvdauto off",
    "print('here', 1 + 1)",
    "import horovod\nprint('horovod', horovod.__version__)",
]


def test_plain_ipython(tmp_path: Path) -> None:
    tag = uuid.uuid4().hex
    script = tmp_path / "session.py"
    script.write_text(f"for cell in {CELLS!r}:\n    get_ipython().run_cell(cell)\n")
    done = subprocess.run(
        [sys.executable, "-m", "IPython", "--colors=NoColor", "--no-banner", str(script)],
        env={**os.environ, "HVD_TEST_TAG": tag, "IPYTHONDIR": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=250,
        check=True,
    )
    lines = done.stdout.splitlines()
    assert sorted(line for line in lines if "line of" in line) == ["[0] line of 0", "[1] line of 1"], done
    assert any(line.startswith("2 ranks, 0 steps,") and line.endswith("loss 0.5") for line in lines), lines
    assert "[0-1] 2" in lines
    assert any("KeyError" in line and "on rank 1" in line for line in lines), lines
    assert "[0] 1" in lines
    assert "[1] 2" in lines
    assert "here 2" in lines
    assert "horovod 0.28.1" in lines
    assert "2 ranks ready" in done.stderr
    assert "ready" not in done.stdout, "the start is reported once"
    job = lines.index("job train on ranks 0-1: %hvdjobs, %hvdcancel train")
    assert lines[job + 1 :][:3] == ["meanwhile 42", "name   ranks  state  steps", "train  0-1    done"], lines
    assert lines[job + 4].endswith("loss 0.25"), lines
    assert lines[job + 5 :][:4] == ["[0] in the back 0", "[1] in the back 1", "[0] 40", "[1] 41"], lines
    assert done.stderr.count("job broken failed: LookupError on ranks 0-1: gone (%hvdjobs broken)") == 1, done.stderr
    await_tagged(f"HVD_TEST_TAG={tag}", 0)
