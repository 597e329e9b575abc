"""Concurrent runs of the suite: everything that one writes, shares and leaves is in its own namespaces.

And runs in a row beside a load, counted back to the last one in which a test failed.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from suite import calm

MOUNT_REFUSED = 32  # as mount(8) says it
WRITES = """
import os, pathlib, subprocess, sys
for folder in (".", pathlib.Path.home(), "/tmp", "/dev/shm"):
    pathlib.Path(folder, sys.argv[1]).write_text(f"{pathlib.Path.cwd()}")
seen = {int(each) for each in os.listdir("/proc") if each.isdigit()}
print(sorted(seen - {os.getpid()}), os.listdir("/tmp"))
subprocess.Popen(["sleep", sys.argv[2]])
sys.exit(3)
"""


@pytest.fixture
def tree() -> Iterator[Path]:
    """A folder outside of /tmp, as a run has a /tmp of its own."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        Path(folder, "kept").write_text("as it was")
        yield Path(folder)


def running(word: str) -> list[str]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            found.append((process / "cmdline").read_text().replace("\0", " "))
        except OSError:  # it has ended
            continue
    return [each for each in found if word in each]


@pytest.mark.nightly
@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts")
def test_a_run_changes_nothing_of_others(tree: Path, tmp_path: Path) -> None:
    name, log, orphan = f"hvd_namespaces_{os.getpid()}", tmp_path / "log", f"1000.{os.getpid()}"
    with calm.copies() as written:
        with log.open("w") as out:
            status = calm.run_apart((sys.executable, "-c", WRITES, name, orphan), written, out, tree)
        if (
            status == MOUNT_REFUSED
        ):  # the file system of /var/tmp cannot be below an overlay: reported, and nothing has run
            assert "overlay" in log.read_text()
            assert [each.name for each in tree.iterdir()] == ["kept"]
            return
        assert status == 3, log.read_text()
        assert calm.copy_of(written, Path(name)).read_text() == str(tree), "it saw the tree at the same path"
        assert log.read_text() == f"[1] ['{name}']\n", "processes and a /tmp of its own"
        everywhere = (tree, Path.home(), Path("/tmp"), Path("/dev/shm"))
        assert [each for each in everywhere if (each / name).exists()] == []
        assert [each.name for each in tree.iterdir()] == ["kept"]
        assert running(f"sleep {orphan}") == [], "what it left behind ended with it"
    assert not written.exists()


def test_missing_root_rights_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(PermissionError, match=r"need root.*leave AT_ONCE away"), calm.copies():
        pass


@pytest.mark.parametrize(
    ("failed", "in_a_row"),
    [([], 0), ([0], 1), ([1], 0), ([1, 0, 0], 2), ([0, 0, 2], 0), ([0, 3, 0, 1, 0, 0, 0], 3)],
)
def test_runs_are_counted_since_the_last_failure(failed: list[int], in_a_row: int) -> None:
    assert calm.in_a_row([{"failed": each} for each in failed]) == in_a_row
