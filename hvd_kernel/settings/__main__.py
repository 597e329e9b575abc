"""Print docs/knobs.md: ``python -m hvd_kernel.settings > docs/knobs.md``."""

from __future__ import annotations

import sys

from hvd_kernel.settings.page import page

sys.stdout.write(page())
