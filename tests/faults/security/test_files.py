"""Files of a cluster: private folders for every umask, no link followed, nothing loaded from the notebook's folder.

Rows I10, S6, S9. Rows E3, S12 and S15 need no kernel: tests/unit/processes/test_private_files.py.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
from contextlib import suppress
from pathlib import Path

import pytest
from hvdtest.place import Place, text_of
from hvdtest.surface import descriptors, proc_file

pytestmark = [pytest.mark.jupyter, pytest.mark.mp, pytest.mark.timeout(400)]

ELSEWHERE = {  # what our processes hold open outside the private folders, and why. What is not here fails the run.
    "/dev/null": "nothing",
    "/dev/ptmx": "the launcher's pipes of the ranks' output",
    "/dev/pts/": "their other ends",
    "/dev/urandom": "random numbers",
    "/memfd:hvd-": "memory that ranks share: it has no name in any folder",
    "/dev/shm/open_mpi.": "Open MPI's, deleted as soon as it is made",
    "anon_inode:": "no file",
    "socket:": "no file",
    "pipe:": "no file",
}


def folders(place: Place) -> list[Path]:
    """The cluster's private folders: the supervisor's plan names them."""
    pid = next(pid for pid, room in place.family().items() if room == "supervisor")
    words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    plan = next(json.loads(word) for word in words if word.startswith("{"))
    return [Path(folder) for folder in plan["folders"]]


def test_s6_private_folders_are_0700_under_umask_000(place: Place) -> None:
    for folder in folders(place):
        found = folder.lstat()
        assert stat.S_ISDIR(found.st_mode)
        assert stat.S_IMODE(found.st_mode) == 0o700, folder
        assert found.st_uid == os.geteuid()
        for path in folder.rglob("*"):
            print(oct(path.lstat().st_mode), path)
            assert path.lstat().st_uid == os.geteuid(), path


def test_s6_no_file_of_the_cluster_holds_a_key(place: Place) -> None:
    files = [path for folder in folders(place) for path in folder.rglob("*") if path.is_file()]
    assert len(files) >= 5
    assert {str(path): seen for path in files if (seen := place.seen_in(text_of(path)))} == {}


def test_s6_logs_are_0600(place: Place) -> None:
    logs = [path for folder in folders(place) for path in folder.rglob("*.log")]
    assert logs
    assert {str(path): oct(path.stat().st_mode) for path in logs if stat.S_IMODE(path.stat().st_mode) != 0o600} == {}


def test_s6_files_open_for_writing_are_in_private_folders(place: Place) -> None:
    own = [*map(str, folders(place)), str(place.home)]
    strange = set()
    for pid, room in place.family().items():
        for entry, target in descriptors(pid).items():
            if room == "kernel" and int(entry.name) < 3:
                continue  # what started it gave it those
            info = proc_file(pid, f"fdinfo/{entry.name}").decode()
            if not info:
                continue  # closed meanwhile
            flags = int(info.split("flags:")[1].split()[0], 8)
            if flags & os.O_ACCMODE and not target.startswith((*own, *ELSEWHERE)):
                strange.add((room, target))
    assert strange == set()


def test_s9_shared_memory_is_unnamed_and_cannot_be_truncated(place: Place) -> None:
    """A peer that shrank the memory would kill the others by SIGBUS."""
    ranks = [pid for pid, room in place.family().items() if room == "rank"]
    seals = {}
    for pid in ranks:
        for entry, target in descriptors(pid).items():
            if target.startswith("/memfd:hvd-"):
                with suppress(FileNotFoundError), entry.open("rb") as memory:  # it may be closed meanwhile
                    seals[pid, target] = fcntl.fcntl(memory, fcntl.F_GET_SEALS)
    assert len({pid for pid, _ in seals}) == 2
    assert {each: found for each, found in seals.items() if not found & fcntl.F_SEAL_SHRINK} == {}


def test_i10_files_planted_beside_the_notebook_never_run(place: Place) -> None:
    """The kernel may: after its own modules are loaded it is the user's, like every Jupyter kernel."""
    runs = place.canary.read_text().splitlines() if place.canary.exists() else []
    rooms = place.family()
    by_room = [(rooms.get(int(pid), pid), name) for pid, name in map(str.split, runs)]
    print(by_room)
    assert [each for each in by_room if each[0] != "kernel"] == []
    assert not {"hvd_kernel", "sitecustomize", "usercustomize", "ipykernel", "zmq", "IPython", "tornado", "logging"} & {
        n for _, n in by_room
    }
    assert not {n for _, n in by_room if n.startswith(".") or "config" in n}


def test_i10_cells_still_import_from_the_notebooks_folder(place: Place) -> None:
    cell = "import helper_of_the_notebook as h\nh.answer"
    assert place.run(cell).shown == ["42"]
    assert place.run(f"%%hvdrun\n{cell}").shown == ["[0-1] 42"]


def test_s7_core_file_of_the_controller_holds_no_memory(place: Place) -> None:
    pid = next(pid for pid, room in place.family().items() if room == "supervisor")
    assert int(Path(f"/proc/{pid}/coredump_filter").read_text(), 16) == 0
