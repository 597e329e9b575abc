"""%hvdauto: plain cells run on the ranks, or here."""

from __future__ import annotations

from hvd_kernel.errors import UsageError
from hvd_kernel.magics.context import Context
from hvd_kernel.magics.display.user_error import user_errors
from hvd_kernel.magics.options import Options

SWITCH = ("on", "off")


@user_errors()
def auto(context: Context, options: Options) -> None:
    """Switch, or take the other state where the line says none.

    Example: ``%hvdauto on``.

    Raises
    ------
    UsageError
        The line says neither ``on`` nor ``off``.
    """
    said = " ".join(options.arguments) or ("off" if context.transformer.auto else "on")
    if said not in SWITCH:
        raise UsageError(f"%hvdauto: {said!r} is not understood: write %hvdauto on or %hvdauto off")
    context.transformer.auto = said == "on"
    context.writer().say(f"plain cells run {'on the ranks' if context.transformer.auto else 'here'}\n")
