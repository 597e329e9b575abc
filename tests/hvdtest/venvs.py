"""A virtual environment of a test's own, with all of our packages: installations of a test affect no other environment."""

from __future__ import annotations

import subprocess
import sysconfig
import venv
from pathlib import Path

from hvdtest.launch import clean_environment


def venv_with_ours(folder: Path) -> Path:
    """Create an environment that finds our packages after its own; return its Python."""
    venv.EnvBuilder(symlinks=True).create(folder)
    python = folder / "bin" / "python"
    ours = sysconfig.get_path("purelib")
    (site_packages(python) / "ours.pth").write_text(f"import site; site.addsitedir({ours!r})\n")
    return python


def site_packages(python: Path) -> Path:
    (found,) = (python.parents[1] / "lib").glob("python*/site-packages")
    return found


def output_of(*command: str | Path, cwd: Path = Path("/"), status: int = 0, **env: str) -> str:
    """Return the output of a command, or its errors if it must fail. It runs outside our folder, which Python would import from."""
    clean = {name: value for name, value in clean_environment().items() if name not in {"PYTHONPATH", "HVD_COMPAT"}}
    done = subprocess.run(command, env=clean | env, cwd=cwd, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == status, done.stdout + done.stderr
    return (done.stderr if status else done.stdout).strip()
