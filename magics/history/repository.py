"""Git's commit of the folder in which a run was made."""

from __future__ import annotations

import subprocess

_PATIENCE_S = 2.0


def commit(place: str) -> str:
    """Return the commit of the repository in which a folder lies; "" where there is none, or no git."""
    asked = ["git", "-C", place, "rev-parse", "--short=12", "HEAD"]
    try:
        done = subprocess.run(asked, capture_output=True, text=True, timeout=_PATIENCE_S, check=False)  # noqa: S603 - the notebook's own folder
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
