"""Backend "hvd" of ``torch.distributed``: DDP, FSDP2 and DeviceMesh run on the core.

``register()`` makes the name known to torch; see docs/torch_distributed.md.
"""

from __future__ import annotations

from hvd_kernel.torch.distributed.backend import is_registered, register

__all__ = ["is_registered", "register"]
