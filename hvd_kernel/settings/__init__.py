"""Every variable of the environment that means something to us or to Horovod, in tables. A shared leaf.

Words.
  HVD_*      our own variable; it wins over Horovod's where both are set
  HOROVOD_*  Horovod's variable of the same meaning, so that existing job scripts keep working
  setting    one key that the core understands, with the variables that set it
  elsewhere  variables that another part reads itself; here they are checked and documented
  idle       Horovod's variables that change nothing here, and why
  lenient    values of Horovod's variables that are read as something else; what is done instead is said once
"""

from __future__ import annotations

from hvd_kernel.settings.elsewhere import ELSEWHERE, Elsewhere
from hvd_kernel.settings.idle import IDLE, Idle
from hvd_kernel.settings.lenient import LENIENT, Lenient
from hvd_kernel.settings.table import SETTINGS, Setting

__all__ = ["ELSEWHERE", "IDLE", "LENIENT", "SETTINGS", "Elsewhere", "Idle", "Lenient", "Setting"]
