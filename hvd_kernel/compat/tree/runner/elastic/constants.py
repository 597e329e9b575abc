"""``horovod.runner.elastic.constants``."""

from __future__ import annotations

RESET_LIMIT_EXCEEDED_MESSAGE = "Reset count has exceeded the limit {}: the job ends."
