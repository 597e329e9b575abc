"""``hvdrun --install-mpirun DIR``: a launch script that calls mpirun as Horovod's tutorials do runs unchanged."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from hvdtest.hvdrun import SUM, good, hvdrun, lines_of, ran

from hvd_kernel.errors import ConfigError
from hvd_kernel.launch.cli.horovodrun import install_mpirun

OPENIB = (
    "hvdrun: warning: -mca btl '^openib' is ignored: ranks choose their links (shared memory, TCP) themselves, "
    "without Open MPI"
)
DATA = Path(__file__).parents[1] / "data"


@pytest.mark.mp
def test_a_launch_script_of_horovods_tutorials_runs_unchanged(mark: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SUM)
    folder = tmp_path / "bin"
    assert good(hvdrun("--install-mpirun", str(folder))) == f"{folder / 'mpirun'}\n"
    path = os.pathsep.join([str(folder), str(Path(sys.executable).parent), os.environ["PATH"]])
    done = ran(["sh", str(DATA / "mpirun.sh")], cwd=tmp_path, PATH=path)
    assert [lines_of(good(done), rank) for rank in range(4)] == [[f"{rank} 4 {rank} 4 1 10.0"] for rank in range(4)]
    assert [line for line in done.stderr.splitlines() if "openib" in line] == [OPENIB]


def test_own_wrapper_is_rewritten_and_a_foreign_one_kept(tmp_path: Path) -> None:
    path = install_mpirun(str(tmp_path))
    path.write_text(path.read_text().replace(sys.executable, "/elsewhere/python"))
    assert install_mpirun(str(tmp_path)) == path
    assert path.read_text().startswith(f"#!{sys.executable} -P\n")
    assert path.stat().st_mode & 0o777 == 0o755
    path.write_text("#!/bin/sh\n")
    with pytest.raises(
        ConfigError, match=r"mpirun already exists and was not written by hvdrun: choose another folder\."
    ):
        install_mpirun(str(tmp_path))
    assert path.read_text() == "#!/bin/sh\n"


@pytest.mark.parametrize(
    ("folder", "whose"),
    [("/usr/local/bin", "the system's"), ("/bin", "system's"), (str(Path(sys.prefix, "bin")), "this environment's")],
)
def test_world_writable_folder_is_refused(folder: str, whose: str) -> None:
    with pytest.raises(ConfigError, match=f"is .*{whose}, where mpirun is MPI's for all: choose a folder of your own"):
        install_mpirun(folder)
