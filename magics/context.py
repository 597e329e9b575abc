"""The context of a magic: the notebook's shell, the manager of its cluster, and where output goes."""

from __future__ import annotations

from dataclasses import dataclass

from IPython.core.interactiveshell import InteractiveShell

from hvd_kernel.magics.cluster_manager import ClusterManager
from hvd_kernel.magics.display.writer import Writer
from hvd_kernel.magics.shell.transform import Transformer


@dataclass(frozen=True)
class Context:
    """What every magic of one notebook needs."""

    shell: InteractiveShell
    manager: ClusterManager
    transformer: Transformer
    own: Writer | None = None  # a job's, which runs beside the cells

    def writer(self) -> Writer:
        """Return the output of the cell that runs."""
        return self.own or Writer(self.shell)
