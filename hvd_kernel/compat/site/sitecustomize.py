# ruff: noqa: INP001 - a folder for PYTHONPATH, not a package
"""Enable ``import horovod`` and torch's backend hvd at the start of a rank's Python, then run the next sitecustomize.

Child processes of a rank import this too, in any environment: it does nothing if hvd_kernel is missing.
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

    from hvd_kernel.frameworks import torch_backend

    torch_backend.after_import().begin()

_next = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
if _next is not None and _next.loader is not None:
    _module = importlib.util.module_from_spec(_next)
    sys.modules["sitecustomize"] = _module
    _next.loader.exec_module(_module)
