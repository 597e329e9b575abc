"""The Jupyter kernel ``hvd_kernel``: ipykernel's, with the magics loaded and the ranks tied to its life."""
