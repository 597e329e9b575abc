"""Our own API, as a user calls it."""

from __future__ import annotations

from typing import Any

import hvd_kernel.torch

hvd: Any = hvd_kernel.torch  # what it re-exports is not visible to type checkers
