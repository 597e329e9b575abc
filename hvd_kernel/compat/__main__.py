"""``python -m hvd_kernel.compat train.py ...``: run a script that imports horovod.

For ranks of mpirun, srun and torchrun, which do not set ``rank_environment``; ``-m module`` runs a module.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from hvd_kernel import compat
from hvd_kernel.errors import UsageError


def main() -> None:
    """Run the script or module of the command line as ``__main__``, with the arguments after it."""
    match sys.argv[1:]:
        case ["-m", module, *arguments]:
            compat.install_in_rank()
            sys.argv = [module, *arguments]
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        case [script, *arguments] if not script.startswith("-"):
            compat.install_in_rank()
            sys.argv = [script, *arguments]
            sys.path.insert(0, str(Path(script).resolve().parent))
            runpy.run_path(script, run_name="__main__")
        case _:
            raise UsageError("say what to run: python -m hvd_kernel.compat train.py [arguments], or -m module")


if __name__ == "__main__":
    main()
