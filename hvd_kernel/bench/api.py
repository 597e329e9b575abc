"""hvd_kernel's torch API, without types."""

from __future__ import annotations

from typing import Any

import hvd_kernel.torch

hvd: Any = hvd_kernel.torch  # its re-exports are not visible to type checkers
