"""What ``import horovod`` gives where we stand in for it. Its parts are found through the table in the finder."""

from __future__ import annotations

__version__ = "0.28.1"  # the release whose interface this is: programs compare it
