"""Stack dump at a signal: for when C code keeps Python's lock and no thread of this process answers.

Python's calls first, by ``faulthandler``, then the C functions, by the core. Nobody need read it: what does not fit a
pipe that does not block is dropped.
"""

from __future__ import annotations

import faulthandler

from hvd_kernel.protocol.messages import STACK_SIGNAL


def write_stacks_to(descriptor: int) -> None:
    """Have ``STACK_SIGNAL`` write the main thread's stacks there, until this process ends."""
    from hvd_kernel._native import write_c_stack_at  # noqa: PLC0415 - only a rank loads the extension

    faulthandler.register(STACK_SIGNAL, file=descriptor, all_threads=False, chain=False)
    write_c_stack_at(STACK_SIGNAL, descriptor)  # after that: a handler that faulthandler chains loses SA_RESTART
