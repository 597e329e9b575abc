"""The context of a magic: the notebook's shell, the manager of its cluster, and where output goes."""

from __future__ import annotations

from dataclasses import dataclass

from IPython.core.interactiveshell import InteractiveShell

from hvd_kernel.magics.cluster_manager import ClusterManager
from hvd_kernel.magics.display.writer import Writer
from hvd_kernel.magics.transform import Transformer


@dataclass(frozen=True)
class Context:
    """The objects that the magics of one notebook share."""

    shell: InteractiveShell
    manager: ClusterManager
    transformer: Transformer
    job_writer: Writer | None = None  # of a job, which runs beside the cells

    def writer(self) -> Writer:
        """Return the writer of the job, else of the running cell."""
        return self.job_writer or Writer(self.shell)
