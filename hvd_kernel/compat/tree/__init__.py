"""Module ``horovod`` of this stand-in; ``compat.finder`` maps Horovod's other modules to the files beside this one."""

from __future__ import annotations

__version__ = "0.28.1"  # the release whose interface this is: programs compare it
