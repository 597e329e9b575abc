"""Print docs/magics.md: ``python -m hvd_kernel.magics > docs/magics.md``."""

from __future__ import annotations

import sys

from hvd_kernel.magics.commands.page import page

sys.stdout.write(page())
