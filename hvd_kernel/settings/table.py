"""Table of all settings: those of the core, of the package and of the notebook."""

from __future__ import annotations

from hvd_kernel.settings.core import CORE_SETTINGS
from hvd_kernel.settings.notebook import NOTEBOOK_SETTINGS
from hvd_kernel.settings.package import PACKAGE_SETTINGS

SETTINGS = (*CORE_SETTINGS, *PACKAGE_SETTINGS, *NOTEBOOK_SETTINGS)
