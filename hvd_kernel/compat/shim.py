"""A wheel named horovod, for projects that require that distribution: metadata, its command, and our .pth file."""

from __future__ import annotations

import base64
import csv
import hashlib
import importlib.metadata
import io
import zipfile
from pathlib import Path

import hvd_kernel
from hvd_kernel.compat import pth, tree

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
        PTH: pth.text(_NOTE),
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
