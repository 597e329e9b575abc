"""``python -P -m hvd_kernel.kernel -f CONNECTION_FILE``: what the kernelspec starts.

-P keeps the notebook's folder off the path while we are loaded, so that no file there can stand for one of our modules.
"""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile

from ipykernel import kernelapp
from IPython.paths import get_ipython_dir

from hvd_kernel.kernel.kernel import HvdKernel
from hvd_kernel.kernel.pipe import PrivatePipe
from hvd_kernel.magics.history.store import INSTEAD

_INSTALLED = {"site-packages", "dist-packages"}


class HvdKernelApp(kernelapp.IPKernelApp):
    """ipykernel's application, started without the notebook's folder on its path."""

    classes = [*kernelapp.IPKernelApp.classes, HvdKernel]  # noqa: RUF012 - as in the base; --help-all lists our settings

    def init_path(self) -> None:
        """Let cells import from the notebook's folder, in IPython's place for it, unless the user says otherwise."""
        if "" in sys.path or self.ignore_cwd or os.environ.get("PYTHONSAFEPATH"):
            return
        places = (at for at, path in enumerate(sys.path) if os.path.basename(path) in _INSTALLED)  # noqa: PTH119 - "" too
        sys.path.insert(next(places, 0), "")


def find_ipython_dir() -> None:
    """Give IPython a folder that goes with this kernel where it can make none, and would end with an error."""
    try:
        get_ipython_dir()
    except OSError as error:  # it asks for permissions, which tell nothing of a full quota, or of root on NFS
        sys.stderr.write(f"{error.filename} cannot be made ({error.strerror}): history lasts as long as this kernel\n")
        os.environ["IPYTHONDIR"] = folder = tempfile.mkdtemp(prefix=INSTEAD)
        atexit.register(shutil.rmtree, folder, ignore_errors=True)


def main() -> None:
    """Serve until shut down."""
    find_ipython_dir()
    vars(kernelapp)["IOPubThread"] = PrivatePipe  # the application has no setting for it
    HvdKernelApp.launch_instance(kernel_class=HvdKernel)


if __name__ == "__main__":
    main()
