"""The Jupyter kernel ``hvd_kernel``: ipykernel with the magics loaded; the ranks exit with the kernel."""
