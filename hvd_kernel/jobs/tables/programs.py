"""Program names of other launchers, whose command lines are read here. A leaf."""

from __future__ import annotations

MPI = frozenset(
    {"mpirun", "mpiexec", "mpiexec.hydra", "mpirun.openmpi", "mpiexec.openmpi", "mpirun.mpich", "orterun", "prterun"}
)
HOROVOD = frozenset({"horovodrun", "hvdrun"})
"""Horovod's launcher and ours, which has the same flags."""
ALL = MPI | HOROVOD
