"""Program names of other launchers whose command lines are supported."""

from __future__ import annotations

from collections.abc import Sequence

MPI = frozenset(
    {"mpirun", "mpiexec", "mpiexec.hydra", "mpirun.openmpi", "mpiexec.openmpi", "mpirun.mpich", "orterun", "prterun"}
)
HOROVOD = frozenset({"horovodrun", "hvdrun"})
"""Horovod's launcher, and ours with the same flags."""
ALL = MPI | HOROVOD
GRADIENT = (("gradient",), ("experiments", "experiment"))
"""The first words of Gradient's command lines; ``gradient`` only could be any program."""
JSRUN = "jsrun"
"""IBM's launcher of an LSF allocation."""
JSRUN_PLACE = "an LSF job"
"""Location of jsrun, for messages."""


def launcher(command: Sequence[str]) -> str:
    """Return the program of another launcher's command line, or an empty string for any other command.

    >>> launcher(["/usr/bin/mpirun", "-np", "2", "train"]), launcher(["gradient", "models"])
    ('mpirun', '')
    """
    name = command[0].rpartition("/")[2] if command else ""
    line = (name, *command[1 : len(GRADIENT)])
    is_gradient = len(line) == len(GRADIENT) and all(word in words for word, words in zip(line, GRADIENT, strict=True))
    return name if name in ALL or is_gradient else ""
