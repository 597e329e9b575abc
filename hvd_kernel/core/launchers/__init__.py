"""Launchers of other make: what srun tells a rank, and what a rank of mpirun owes to it."""
