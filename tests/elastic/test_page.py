"""The example of docs/elastic.md, as it stands there: its training and its script of hosts."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from hvdtest.hvdrun import HVDRUN, ran

pytestmark = [pytest.mark.mp, pytest.mark.nightly, pytest.mark.usefixtures("mark")]

PAGE = Path(__file__).parents[2] / "docs/elastic.md"


def block(language: str) -> str:
    found = re.search(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[1]


def test_the_example_runs(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(block("python"))
    (tmp_path / "hosts.txt").write_text("localhost:1\n127.0.0.1:1\n")
    script = tmp_path / "hosts.sh"
    script.write_text(block("sh").replace("/shared", str(tmp_path)))
    script.chmod(0o755)
    flags = ["-np", "2", "--min-np", "1", "--max-np", "4", "--host-discovery-script", str(script)]
    done = ran([*HVDRUN, *flags, sys.executable, "-P", "train.py"], tmp_path)
    assert (done.returncode, done.stdout) == (0, "[0]<stdout>:done on 2 ranks\n"), done.stderr


def test_every_row_names_a_test_that_is_there() -> None:
    named = set(re.findall(r"`(test_\w+)`", PAGE.read_text().partition("## What happens when")[2]))
    here = Path(__file__).parent
    files = [*here.glob("test_*.py"), *here.parent.rglob("test_elastic*.py")]
    there = {name for file in files for name in re.findall(r"def (test_\w+)", file.read_text())}
    assert named
    assert named <= there
