"""Virtual environments for frameworks that .venv does not have: created once from a lock file, then kept.

``environment("tf221")`` is the Python of tests/frameworks/environments/tf221.txt, which names every package with ==. It
finds our package through links to where pytest's own Python has it, so that a change of ours needs no new environment.
Packages on a line ``# link: torch torchgen`` are links too. What was downloaded (gigabytes) is shared by all checkouts; what
belongs to one checkout is an environment with nothing but links on top of it.

Terms.
  home        where environments are kept: ~/.cache/hvd_kernel/environments, or HVDTEST_ENVIRONMENTS
  downloaded  the environment that a lock file was installed into
  digest      of a lock file and of the Python, and of the links' target: another one is another environment
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import venv
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hvdtest.launch import TESTS, RankPool, clean_environment
from hvdtest.venvs import site_packages

LOCKS = TESTS / "frameworks" / "environments"
MAKING_S = 500
_LINKED = "with programs and libraries"  # what a checkout's environment has of the downloaded one: a part of its digest
OURS = ("hvd_kernel", "hvd_kernel-*.dist-info", "_editable_skbc_hvd_kernel.*")
_WANTED = re.compile(
    r"(?:Could not find a version that satisfies the requirement|No matching distribution found for) (\S+)"
)


def names() -> list[str]:
    """Return the names of the environments with a lock file."""
    return sorted(path.stem for path in LOCKS.glob("*.txt"))


def environment(name: str) -> Path:
    """Return the Python of an environment, which is created if it does not exist."""
    lock = LOCKS / f"{name}.txt"
    assert lock.exists(), f"no environment {name!r}: {LOCKS} has {', '.join(names())}"
    downloaded = _made(f"{name}-{_digest(lock)}", lambda python: _install(python, lock))
    return _made(f"{name}-{_digest(lock, str(ours()), _LINKED)}", lambda python: _link_all(python, lock, downloaded))


def made(name: str, lock: Path, base: Path) -> Path:
    """The Python of an environment of another version of Python, ``base``, with a lock file's packages and none of ours."""
    version = subprocess.run([base, "-VV"], capture_output=True, text=True, check=True).stdout
    return _made(f"{name}-{_digest(lock, version, str(ours()))}", lambda python: _install(python, lock), base)


class Ranks(RankPool):
    """A pool of ranks of another Python: ``Ranks(environment("tf221"), 2)``; ``interop``: TensorFlow's threads for operations."""

    def __init__(self, python: Path, np: int, *, interop: int = 2, **env: str) -> None:
        variables: dict[str, Any] = quiet(interop) | env
        super().__init__(np, python=python, **variables)


def run(python: Path, check: Callable[..., Any], *args: Any, np: int = 2, interop: int = 2, **env: str) -> list[Any]:
    """Return the results of a function of a test file on np new ranks; an overdue rank reports its wait and its stacks."""
    with Ranks(python, np, interop=interop, **env) as ranks:
        return ranks.run(check, *args, timeout=300)


def output_of(python: Path, script: str, *args: str, **env: str) -> str:
    """Return the output of a script in one process without a launcher."""
    command = [str(python), "-P", "-c", script, *args]
    done = subprocess.run(
        command, env=clean_environment(**(quiet() | env)), capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def quiet(interop: int = 2) -> dict[str, str]:
    """Return variables that silence a framework, limit it to one core and hide GPUs."""
    return {
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "TF_NUM_INTEROP_THREADS": str(interop),
        "TF_NUM_INTRAOP_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "JAX_PLATFORMS": "cpu",
    }


def ours(purelib: str = sysconfig.get_path("purelib")) -> Path:
    """Where pytest's own packages are; of a shard's copy of .venv (.ci/extras), .venv's, so that environments are the same."""
    root, found = TESTS.parent, Path(purelib)
    copy = root / "build" / "extras"
    return root / ".venv" / found.relative_to(copy) if found.is_relative_to(copy) else found


def _home() -> Path:
    return Path(os.environ.get("HVDTEST_ENVIRONMENTS") or Path.home() / ".cache" / "hvd_kernel" / "environments")


def _digest(lock: Path, *more: str) -> str:
    text = "\n".join([lock.read_text(), sys.version, *more])
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _made(name: str, fill: Callable[[Path], None], base: Path | None = None) -> Path:
    """Return the Python of the environment of this name, created at the first call. ``base``: instead of pytest's Python."""
    folder = _home() / name
    python = folder / "bin" / "python"
    if not python.exists():
        with locked(folder):
            if not python.exists():
                _make(folder, fill, base)
    return python


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of this environment; it is released if its process dies."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _make(folder: Path, fill: Callable[[Path], None], base: Path | None) -> None:
    """Create the environment beside its final path, so that it is complete there. Scripts with a path in their first line are not used."""
    new = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        if base is None:
            venv.EnvBuilder(symlinks=True).create(new)
        else:
            subprocess.run([base, "-m", "venv", "--symlinks", "--without-pip", new], check=True)
        fill(new / "bin" / "python")
        new.replace(folder)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _link_all(python: Path, lock: Path, downloaded: Path) -> None:
    """Put our package and the links of the lock file before the downloaded packages on the path."""
    folder = site_packages(python)
    for pattern in (*OURS, *_links(lock)):
        _link(pattern, folder)
    (folder / "downloaded.pth").write_text(f"import site; site.addsitedir({str(site_packages(downloaded))!r})\n")
    _link_beside(downloaded.parents[1], python.parents[1])


def _link_beside(theirs: Path, ours: Path) -> None:
    """Link the files that packages have beside Python's own folders, as mpiexec and its libraries: they are searched there."""
    for each in theirs.iterdir():
        here = ours / each.name
        if not here.exists():
            here.symlink_to(each)
        elif here.is_dir() and not here.is_symlink():
            for inner in each.iterdir():
                if not (here / inner.name).exists():
                    (here / inner.name).symlink_to(inner)


def _install(python: Path, lock: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(python),
        "install",
        "--quiet",
        "--no-deps",
        "--no-compile",
        "-r",
        str(lock),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=MAKING_S, check=False)
    wanted = ", ".join(dict.fromkeys(_WANTED.findall(done.stderr)))
    assert done.returncode == 0, f"{lock.name}: {wanted or 'a package'} could not be fetched:\n{done.stderr[-3000:]}"


def _links(lock: Path) -> list[str]:
    return [name for line in re.findall(r"^# link: (.*)$", lock.read_text(), re.MULTILINE) for name in line.split()]


def _link(pattern: str, folder: Path) -> None:
    for each in ours().glob(pattern):
        (folder / each.name).symlink_to(each)
