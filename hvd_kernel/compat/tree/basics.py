"""``horovod.common.basics``: ``HorovodBasics``, through which other packages use Horovod's core."""

from __future__ import annotations

from hvd_kernel.compat.tree import util
from hvd_kernel.core import process_sets, session, tensor


class HorovodBasics:
    """Rank, size, init and shutdown of this process. Ignores the path of an extension: there is only one core."""

    def __init__(self, pkg_path: str = "", *args: str) -> None:
        del pkg_path, args  # Horovod's

    Average, Sum, Adasum = tensor.Average, tensor.Sum, tensor.Adasum
    Min, Max, Product = tensor.Min, tensor.Max, tensor.Product

    HOROVOD_PROCESS_SET_ERROR_INIT = -1
    HOROVOD_PROCESS_SET_ERROR_DYNAMIC = -2
    HOROVOD_PROCESS_SET_ERROR_UNKNOWN_SET = -3
    HOROVOD_PROCESS_SET_ERROR_FOREIGN_SET = -4
    HOROVOD_PROCESS_SET_ERROR_SHUTDOWN = -5
    HOROVOD_PROCESS_SET_ERROR_EXISTING_SET = -6

    init = staticmethod(process_sets.init)
    shutdown = staticmethod(session.shutdown)
    is_initialized = staticmethod(session.is_initialized)
    start_timeline = staticmethod(session.start_timeline)
    stop_timeline = staticmethod(session.stop_timeline)
    size = staticmethod(session.size)
    rank = staticmethod(session.rank)
    local_size = staticmethod(session.local_size)
    local_rank = staticmethod(session.local_rank)
    cross_size = staticmethod(session.cross_size)
    cross_rank = staticmethod(session.cross_rank)
    is_homogeneous = staticmethod(session.is_homogeneous)
    mpi_threads_supported = staticmethod(util.probe("mpi_threads_supported"))
    mpi_enabled = staticmethod(util.probe("mpi_enabled"))
    mpi_built = staticmethod(util.mpi_built)
    gloo_enabled = staticmethod(util.probe("gloo_enabled"))
    gloo_built = staticmethod(util.gloo_built)
    nccl_built = staticmethod(util.nccl_built)
    ddl_built = staticmethod(util.ddl_built)
    ccl_built = staticmethod(util.ccl_built)
    cuda_built = staticmethod(util.cuda_built)
    rocm_built = staticmethod(util.rocm_built)
