"""Entry of a rank: ``python -P -m hvd_kernel.worker``, started by mpiexec.

``warm``: the same, but for a notebook to come: it imports in time that nobody else wants.
With two words it is a rank to be, started by the supervisor: ``spare 4`` takes its time, ``now 4`` is waited for; the
number is that of the ranks that share the cores. ``held``: an agent has started it, on a cluster of others.
"""

import sys

from hvd_kernel.worker import devices, life

if __name__ == "__main__":
    life.tie_to_parent()  # before anything slow: from here on this process ends with the one that started it
    haste, *ranks = sys.argv[1:] or [""]
    life.free_children()
    life.share_cores(*map(int, ranks))
    devices.settle()
    from hvd_kernel.worker import bootstrap

    if haste == "held":
        bootstrap.be_told()
    elif haste in {"", "warm"}:
        bootstrap.main(idle=haste == "warm")
    else:
        bootstrap.stand_by(idle=haste == "spare")
