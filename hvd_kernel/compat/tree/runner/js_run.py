"""``horovod.runner.js_run``: whether IBM's jsrun is here; ``hvdrun`` calls it in a job of LSF."""

from __future__ import annotations

import shutil


def is_jsrun_installed() -> bool:
    """Tell whether there is a jsrun."""
    return shutil.which("jsrun") is not None
