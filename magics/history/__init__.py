"""History of runs: the figures of cells that trained, kept over kernels."""
