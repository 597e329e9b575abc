"""HvdKernel: ipykernel's kernel (completion, inspection, debugger, subshells, widgets) with the magics."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Any

from traitlets import Type

from hvd_kernel.errors import ConfigError
from hvd_kernel.kernel.interrupt_key import HvdShell, Interrupts
from hvd_kernel.kernel.pages import PagesAside
from hvd_kernel.magics import load_ipython_extension, manager_of
from hvd_kernel.settings.traits import SettingTraits


def _version() -> str:
    try:
        return version("hvd-kernel")
    except PackageNotFoundError:  # run from a source tree that is not installed
        return "0"


class HvdKernel(PagesAside, SettingTraits):
    """ipykernel's kernel with ``%%hvdrun``."""

    implementation = "hvd_kernel"
    implementation_version = _version()

    shell: Any
    shell_class = Type(HvdShell)

    def __init__(self, **kwargs: Any) -> None:
        self.interrupts = Interrupts()
        super().__init__(**kwargs)
        try:
            load_ipython_extension(self.shell)
        except ConfigError as error:  # of HVD_COMPAT: a notebook works without ``import horovod``
            self.log.warning("%s", error)

    @property
    def banner(self) -> str:  # type: ignore[override]
        """Name and version of this kernel, above IPython's banner."""
        return (
            f"hvd_kernel {self.implementation_version}: %%hvdrun -np 4 runs a cell on four ranks\n{self.shell.banner}"
        )

    def pre_handler_hook(self) -> None:
        """Install the interrupt handler for a request of the shell channel."""
        self.saved_sigint_handler = self.interrupts.begin()

    def do_shutdown(self, restart: bool) -> Any:
        """Stop the ranks, except those that are kept, then the kernel."""
        manager = manager_of(self.shell)
        if manager is not None:
            manager.end()
        return super().do_shutdown(restart)  # type: ignore[no-untyped-call]
