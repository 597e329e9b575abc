# ruff: noqa: INP001 - a folder for PYTHONPATH, not a package
"""What Python imports when a rank starts: ``import horovod`` finds hvd_kernel; then the next sitecustomize runs.

A rank's children find this too, of whatever environment they are: where there is no hvd_kernel it does nothing.
"""

import contextlib
import importlib.machinery
import importlib.util
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib is slow to import, and this is every start
sys.path[:] = [folder for folder in sys.path if folder != _HERE]

with contextlib.suppress(ImportError):
    from hvd_kernel import compat

    compat.install_in_rank()

_own = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
if _own is not None and _own.loader is not None:
    _module = importlib.util.module_from_spec(_own)
    sys.modules["sitecustomize"] = _module
    _own.loader.exec_module(_module)
