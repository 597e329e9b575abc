"""Entry of a rank: ``python -P -m hvd_kernel.worker``, started by mpiexec.

``warm``: the same for a future notebook; it imports at idle priority.
With two arguments the supervisor starts it as a replacement: ``spare 4`` imports at idle priority, ``now 4``
immediately; the number is that of the ranks that share the cores. ``held``: started by an agent on another cluster.
"""

import sys

from hvd_kernel.worker import devices, life

if __name__ == "__main__":
    life.tie_to_parent()  # before anything slow: from now on this process ends with its parent
    mode, *ranks = sys.argv[1:] or [""]
    life.free_children()
    life.share_cores(*map(int, ranks))
    devices.apply_choice()
    from hvd_kernel.worker import bootstrap

    if mode == "held":
        bootstrap.main_of_agent()
    elif mode in {"", "warm"}:
        bootstrap.main(idle=mode == "warm")
    else:
        bootstrap.stand_by(idle=mode == "spare")
