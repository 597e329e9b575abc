"""What every magic needs at hand: the notebook's shell and the holder of its cluster."""

from __future__ import annotations

from dataclasses import dataclass

from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics

from hvd_kernel.magics.cluster_manager import Holder
from hvd_kernel.magics.display.writer import Screen


@dataclass(frozen=True)
class Desk:
    """The shell and the holder of one notebook."""

    shell: InteractiveShell
    holder: Holder
    own: Screen | None = None  # a job's, which runs beside the cells

    def screen(self) -> Screen:
        """Return the output of the cell that runs."""
        return self.own or Screen(self.shell)


class DeskMagics(Magics):
    """Magics at a desk: what every class of ours is made from."""

    shell: InteractiveShell

    def __init__(self, desk: Desk) -> None:
        super().__init__(desk.shell)
        self.desk = desk
