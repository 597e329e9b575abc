"""``python -m hvd_kernel.kernel -f CONNECTION_FILE``: what the kernelspec starts."""

from __future__ import annotations

from ipykernel.kernelapp import IPKernelApp

from hvd_kernel.kernel.kernel import HvdKernel


def main() -> None:
    """Serve until shut down."""
    IPKernelApp.launch_instance(kernel_class=HvdKernel)


if __name__ == "__main__":
    main()
