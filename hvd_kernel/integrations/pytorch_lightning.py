"""Lightning's strategy for programs that import ``pytorch_lightning``, whose classes are not those of ``lightning``."""

from __future__ import annotations

from hvd_kernel.integrations import needed

needed("pytorch_lightning", "lightning")  # before torch, which takes seconds

from hvd_kernel.integrations.strategy import strategy_of  # noqa: E402

HorovodStrategy = strategy_of("pytorch_lightning", "lightning_fabric", __name__)
