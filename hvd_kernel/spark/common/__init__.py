"""What the estimators share: params, store, backend, data; by the module names of ``horovod.spark.common``."""

from __future__ import annotations

import hvd_kernel.spark.installed  # before anything below asks for PySpark
