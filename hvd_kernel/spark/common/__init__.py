"""Common parts of the estimators: params, store, backend, data; the modules of ``horovod.spark.common``."""

from __future__ import annotations

import hvd_kernel.spark.installed  # checks PySpark before the modules below import it
