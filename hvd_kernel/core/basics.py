"""Names that every frontend has: init and shutdown, the place among the ranks, reductions (Horovod's basics).

What asks how the core was built is in build_info: of Horovod's frontends, and not loaded where none is in use.
"""

from __future__ import annotations

from hvd_kernel.core.ops import Adasum, Average, Max, Min, Product, Sum
from hvd_kernel.core.process_sets import init
from hvd_kernel.core.session import (
    cross_rank,
    cross_size,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
    start_timeline,
    stop_timeline,
)
from hvd_kernel.errors import HorovodInternalError

__all__ = [
    "Adasum",
    "Average",
    "HorovodInternalError",
    "Max",
    "Min",
    "Product",
    "Sum",
    "cross_rank",
    "cross_size",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "rank",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]
