"""What the wheel may hold: run as ``contents.py WHEEL``; exits 1 naming each file that is missing or has no business there."""

import sys
import zipfile

REQUIRED = (
    "hvd_kernel/__init__.py",
    "hvd_kernel/py.typed",
    "hvd_kernel/_native.pyi",
    "hvd_kernel/magics/hvdrun.py",
    "hvd_kernel/widgets/dashboard.js",
    "hvd_kernel/widgets/static/uPlot.iife.min.js",
    "hvd_kernel/kernel/__main__.py",
    "hvd_kernel/launch/agent.py",
    "hvd_kernel/launch/mpi_rank.py",
)


def problems(names: list[str]) -> list[str]:
    """Sentences on what is wrong with a wheel's list of files."""
    missing = [f"missing: {name}" for name in REQUIRED if name not in names]
    if not any(n.startswith("hvd_kernel/_native.") and n.endswith(".so") for n in names):
        missing.append("missing: the extension hvd_kernel/_native*.so")
    if not any(n.endswith(".data/data/share/jupyter/kernels/hvd_kernel/kernel.json") for n in names):
        missing.append("missing: the kernelspec")
    tops = {n.split("/")[0] for n in names}
    foreign = [f"foreign: {t}" for t in sorted(tops) if t != "hvd_kernel" and not t.endswith((".dist-info", ".data"))]
    twice = [f"twice: {n}" for n in sorted({n for n in names if names.count(n) > 1})]
    return missing + foreign + twice


if __name__ == "__main__":
    with zipfile.ZipFile(sys.argv[1]) as wheel:
        found = problems(wheel.namelist())
    sys.stdout.write("".join(f"wheel: {p}\n" for p in found) or f"wheel: {sys.argv[1]} holds hvd_kernel/ alone\n")
    sys.exit(bool(found))
