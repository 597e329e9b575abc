"""Import hook that waits for ``import horovod``: nothing imports this file, ``pth`` makes a line of a .pth file of it.

Each start of Python in that environment runs it: it imports nothing, and has no types, which would have to be compiled.
hvd_kernel is imported when somebody asks for horovod; where it has been uninstalled by then, there is no horovod.
"""

import os
import sys


class Later:
    """Is asked for what nothing else in this Python has."""

    @staticmethod
    def find_spec(fullname, path=None, target=None):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN205, ARG004
        """Return where a name of horovod's leads to; None where it is not ours to say."""
        if fullname.partition(".")[0] == "horovod":
            try:
                from hvd_kernel.compat import found  # noqa: PLC0415 - only who asks for horovod pays for it
            except ImportError as error:
                if (error.name or "").partition(".")[0] != "hvd_kernel":
                    raise
            else:
                return found(fullname)
        return None


sys.meta_path.insert(0 if os.environ.get("HVD_COMPAT") == "shadow" else len(sys.meta_path), Later)
