"""``python -P -m hvd_kernel.kernel -f CONNECTION_FILE``: the command of the kernelspec.

-P keeps the notebook's folder off the path while this package is imported, so that no file there shadows a module.
"""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile

from ipykernel import kernelapp
from IPython.paths import get_ipython_dir

from hvd_kernel.kernel.kernel import HvdKernel, PrivatePipe
from hvd_kernel.magics.cell_record import INSTEAD

_INSTALLED = {"site-packages", "dist-packages"}


class HvdKernelApp(kernelapp.IPKernelApp):
    """ipykernel's application, for a process that was started without the notebook's folder on its path."""

    classes = [*kernelapp.IPKernelApp.classes, HvdKernel]  # noqa: RUF012 - as in the base; for --help-all

    def init_path(self) -> None:
        """Add the notebook's folder to the path, in the same position as IPython, unless the user disabled it."""
        if "" in sys.path or self.ignore_cwd or os.environ.get("PYTHONSAFEPATH"):
            return
        positions = (i for i, path in enumerate(sys.path) if os.path.basename(path) in _INSTALLED)  # noqa: PTH119 - ""
        sys.path.insert(next(positions, 0), "")


def find_ipython_dir() -> None:
    """Set IPython's folder to a temporary one if the default cannot be created: IPython would fail otherwise."""
    try:
        get_ipython_dir()
    except OSError as error:  # IPython checks permissions only, which miss a full quota and root on NFS
        sys.stderr.write(f"{error.filename} cannot be made ({error.strerror}): history lasts as long as this kernel\n")
        os.environ["IPYTHONDIR"] = folder = tempfile.mkdtemp(prefix=INSTEAD)
        atexit.register(shutil.rmtree, folder, ignore_errors=True)


def main() -> None:
    """Run the kernel until it is shut down."""
    find_ipython_dir()
    vars(kernelapp)["IOPubThread"] = PrivatePipe  # the application has no setting for it
    HvdKernelApp.launch_instance(kernel_class=HvdKernel)


if __name__ == "__main__":
    main()
