"""The command that installs this package with an extra, for messages: from its checkout, as no registry has it."""

from __future__ import annotations

_PLACE = "(in the checkout of hvd_kernel)"


def install_command(extra: str = "", *options: str) -> str:
    """Return the command; with ``options`` of pip before what is installed.

    Examples
    --------
    ::

        install_command("torch")  # pip install '.[torch]' (in the checkout of hvd_kernel)
    """
    return " ".join(["pip install", *options, f"'.[{extra}]'" if extra else ".", _PLACE])
