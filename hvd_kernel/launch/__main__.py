"""``python -m hvd_kernel.launch`` is ``hvdrun``."""

from __future__ import annotations

import sys

from hvd_kernel.launch.cli.main import main

sys.exit(main())
