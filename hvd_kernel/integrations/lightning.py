"""Lightning's ``Trainer(strategy=HorovodStrategy())``, or ``strategy="horovod"`` once this module is imported."""

from __future__ import annotations

from hvd_kernel.integrations import needed

needed("lightning", "lightning")  # before torch, which takes seconds

from hvd_kernel.integrations.strategy import strategy_of  # noqa: E402

HorovodStrategy = strategy_of("lightning.pytorch", "lightning.fabric", __name__)
