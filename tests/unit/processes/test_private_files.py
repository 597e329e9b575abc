"""Private folders where others can write, names that others have occupied, and an import that starts nothing.

Rows E3, S12, S15.
"""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from hvd_kernel.cluster import launcher
from hvd_kernel.errors import ClusterError
from hvd_kernel.processes import open_mpi
from hvd_kernel.processes.cluster_spec import ClusterSpec
from hvd_kernel.processes.private_dir import private_folder


@pytest.mark.parametrize("mode", [0o777, 0o770])
def test_s15_temporary_folder_writable_by_others_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int
) -> None:
    tmp_path.chmod(mode)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(ClusterError, match=r"other users can replace the files in it\. Set TMPDIR"):
        private_folder()
    assert list(tmp_path.iterdir()) == []
    tmp_path.chmod(mode | stat.S_ISVTX)
    assert stat.S_IMODE(private_folder().stat().st_mode) == 0o700


def test_s15_a_temporary_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "theirs"
    place.mkdir(mode=0o755)
    os.chown(place, 65534, 65534)
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    with pytest.raises(ClusterError, match="not a safe place"):
        private_folder()


def test_e3_a_squatted_name_in_shared_memory_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bait = tmp_path / "bait"
    bait.mkdir()
    name = f"{os.getpid():032x}"
    monkeypatch.setattr(open_mpi.secrets, "token_hex", lambda _bytes: name)
    squatted = Path("/dev/shm", f"hvd-{name}")
    squatted.symlink_to(bait)
    try:
        assert open_mpi.shared_memory_folder(tmp_path / "otherwise") == tmp_path / "otherwise"
    finally:
        squatted.unlink()
    assert list(bait.iterdir()) == []


def test_e3_a_planted_log_is_not_written_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bait = tmp_path / "bait"
    bait.write_text("precious")
    folder = tmp_path / "ours"
    folder.mkdir()
    (folder / "cluster.log").symlink_to(bait)
    monkeypatch.setattr(launcher, "private_folder", lambda: folder)
    with pytest.raises(FileExistsError):
        launcher.Launched(ClusterSpec(1))
    assert bait.read_text() == "precious"


@pytest.mark.parametrize(
    "code",
    [
        "import hvd_kernel",
        "import hvd_kernel.torch",
        "import hvd_kernel.magics, hvd_kernel.widgets, hvd_kernel.cluster",
        "from IPython.core.interactiveshell import InteractiveShell as S; S.instance().run_line_magic('load_ext', 'hvd_kernel')",
    ],
)
def test_s12_import_starts_no_process_and_opens_no_port(code: str) -> None:
    look = (
        "\nimport os\nfrom hvdtest.surface import listeners, family"
        "\nprint(sorted(family(os.getpid()).values()) == ['python'], listeners([os.getpid()]))"
    )
    tests = str(Path(__file__).parents[2])
    path = os.pathsep.join(filter(None, (tests, os.environ.get("PYTHONPATH", ""))))
    ended = subprocess.run(
        [sys.executable, "-c", code + look],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stdout == "True []\n", ended.stderr
