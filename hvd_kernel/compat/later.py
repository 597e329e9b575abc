"""Import hook for ``import horovod`` in every Python of an environment. Not imported: ``pth`` writes it to a .pth file.

It runs at each start of Python, so it imports nothing else and has no annotations, which would have to be compiled.
The first import of horovod imports hvd_kernel; if that has been uninstalled, horovod is not found.
"""

import os
import sys


class Later:
    """Finder after all others, or before them with HVD_COMPAT=shadow."""

    @staticmethod
    def find_spec(fullname, path=None, target=None):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN205, ARG004
        """Return the spec of a module of horovod, or None for other names."""
        if fullname.partition(".")[0] == "horovod":
            try:
                from hvd_kernel.compat import found  # noqa: PLC0415 - imports nothing before the first use
            except ImportError as error:
                if (error.name or "").partition(".")[0] != "hvd_kernel":
                    raise
            else:
                return found(fullname)
        return None


sys.meta_path.insert(0 if os.environ.get("HVD_COMPAT") == "shadow" else len(sys.meta_path), Later)
