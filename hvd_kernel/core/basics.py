"""Names of every frontend: init and shutdown, rank and size, reductions (Horovod's basics).

Queries about how the core was built are in build_info, which only Horovod's frontends load.
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
