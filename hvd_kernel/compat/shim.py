"""``import horovod`` in every Python of an environment: a .pth file, or a wheel named horovod that contains it.

At each start Python runs the lines of a .pth file that begin with ``import``; the line here runs ``later.py``. The
wheel is for projects that require that distribution: it has metadata, its command, and the file.
"""

from __future__ import annotations

import ast
import base64
import csv
import hashlib
import importlib.metadata
import io
import os
import site
import sysconfig
import zipfile
from pathlib import Path

import hvd_kernel
from hvd_kernel.compat import tree

DISTRIBUTION = "horovod"
_LOCAL = "+hvd"
VERSION = tree.__version__ + _LOCAL
PTH = "horovod_shim.pth"  # not pth.NAME: pip removes only the files that it installed
_NOTE = "# `import horovod` is hvd_kernel; `python -m pip uninstall horovod` takes this file away."
_INFO = f"{DISTRIBUTION}-{VERSION}.dist-info"
_EARLIEST = (1980, 1, 1, 0, 0, 0)  # of a zip file; constant, so that the wheel is reproducible
_EXTRAS = {  # Horovod's extras, and torch, which many write -> our extra
    "torch": "torch",
    "pytorch": "torch",
    "tensorflow": "tensorflow",
    "tensorflow-cpu": "tensorflow",
    "tensorflow-gpu": "tensorflow",
    "keras": "keras",
    "mxnet": "mxnet",
}
_METADATA = """\
Metadata-Version: 2.1
Name: {distribution}
Version: {version}
Summary: hvd_kernel under Horovod's name: `import horovod`, `horovodrun`. This is not Horovod.
License: Apache-2.0
Requires-Python: >=3.11
Requires-Dist: {ours}
"""
_WHEEL = """\
Wheel-Version: 1.0
Generator: hvd_kernel ({ours})
Root-Is-Purelib: true
Tag: py3-none-any
"""
_COMMANDS = """\
[console_scripts]
horovodrun = hvd_kernel.launch.cli.main:main
"""


def build(folder: Path) -> Path:
    """Write the wheel into the folder, replacing an existing one; return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{DISTRIBUTION}-{VERSION}-py3-none-any.whl"
    files = _files()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, text in (files | {f"{_INFO}/RECORD": _record(files)}).items():
            entry = zipfile.ZipInfo(name, _EARLIEST)
            entry.external_attr = 0o644 << 16
            wheel.writestr(entry, text, zipfile.ZIP_DEFLATED)
    return path


def installed() -> Path | None:
    """Return the .pth file that pip has installed with the wheel, or None."""
    try:
        distribution = importlib.metadata.distribution(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return None
    return Path(str(distribution.locate_file(PTH))) if distribution.version.endswith(_LOCAL) else None


def _files() -> dict[str, str]:
    return {
        PTH: pth_text(_NOTE),
        f"{_INFO}/METADATA": _metadata(),
        f"{_INFO}/WHEEL": _WHEEL.format(ours=hvd_kernel.__version__),
        f"{_INFO}/entry_points.txt": _COMMANDS,
        f"{_INFO}/top_level.txt": f"{DISTRIBUTION}\n",
    }


def _metadata() -> str:
    """Return the METADATA file; extras of Spark and Ray are missing, so that pip warns about them."""
    version = hvd_kernel.__version__
    head = _METADATA.format(distribution=DISTRIBUTION, version=VERSION, ours=f"hvd-kernel=={version}")
    return head + "".join(
        f'Provides-Extra: {extra}\nRequires-Dist: hvd-kernel[{ours}]=={version}; extra == "{extra}"\n'
        for extra, ours in _EXTRAS.items()
    )


def _record(files: dict[str, str]) -> str:
    table = io.StringIO()
    rows = csv.writer(table, lineterminator="\n")
    for name, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        rows.writerow([name, f"sha256={digest}", len(text.encode())])
    rows.writerow([f"{_INFO}/RECORD", "", ""])
    return table.getvalue()


PTH_FOR_ALL = "hvd_kernel_horovod.pth"
_LATER = "hvd_kernel.compat.later"
_NOTE_FOR_ALL = "# `import horovod` is hvd_kernel; `hvdrun --uninstall-horovod` takes this file away."


def pth_text(note: str = _NOTE_FOR_ALL) -> str:
    """Return the contents of the file: the note and one line of code."""
    code = _lean(Path(__file__).with_name("later.py").read_text(encoding="utf-8"))
    # Source, not ast.parse() and compile() at run time: setting up ``ast`` would add 1 ms to each start.
    return f"{note}\nimport sys; exec({code!r}, {{'__name__': {_LATER!r}}})\n"


def _lean(source: str) -> str:
    """Return the code without docstrings and comments, which saves 1 ms of compilation at each start of Python."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node) is not None:
            del node.body[0]
    return ast.unparse(tree)


def folders() -> list[Path]:
    """Return the folders in which this Python reads .pth files: its site-packages, and the user's if enabled."""
    packages = Path(sysconfig.get_path("purelib"))
    return [packages, Path(site.getusersitepackages())] if site.ENABLE_USER_SITE else [packages]


def writable(choice: list[Path]) -> Path:
    """Return the first writable folder, as pip chooses, or the first folder if none is writable."""
    return next((folder for folder in choice if os.access(folder, os.W_OK)), choice[0])
