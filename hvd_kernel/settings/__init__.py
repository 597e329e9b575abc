"""Settings: tables of every environment variable that this package or Horovod reads. Imported by every other folder.

Terms.
  HVD_*           our own variable; it wins over Horovod's if both are set
  HOROVOD_*       Horovod's variable of the same meaning, so that existing job scripts keep working
  setting         one row: its variables, its name in a Jupyter configuration file, its default, flag and meaning
  unused          Horovod's variables that are accepted without effect, and why
  Horovod values  values of Horovod's variables that are read as other values; the substitution is logged once
"""

from __future__ import annotations

from hvd_kernel.settings.core import CORE_SETTINGS
from hvd_kernel.settings.horovod import HOROVOD_VALUES, UNUSED, HorovodValue, Unused
from hvd_kernel.settings.setting import Setting
from hvd_kernel.settings.table import SETTINGS

__all__ = ["CORE_SETTINGS", "HOROVOD_VALUES", "SETTINGS", "UNUSED", "HorovodValue", "Setting", "Unused"]
