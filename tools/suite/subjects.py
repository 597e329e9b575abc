"""Commit subjects since the rule: ``room: what changes``, imperative, at most 72 characters. Run by .ci/lint."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

SINCE = "c8a9fd7f062f965ab4d0f8c92cc469d62fc82080"
"""The last commit before the rule."""
BESIDE = ("b7343a75",)
"""Commits that others had already when the check saw them: history is not rewritten for a letter."""
IMPERATIVE_SINCE = "7773f215bea08001929c62fb28b8214050d28d95"
"""The last commit before subjects had to begin with a verb."""
LONGEST = 72
NO_COMMAND = re.compile(
    r".*?: (an?|all|another|both|each|every\w*|he|how|its?|no|nobody|nothing|of|one|our|several|she|some|that|the|their|they"
    r"|this|those|three|two|we|what\w*|when|where|which|who\w*) .*",
    re.IGNORECASE,
)
SUBJECT = re.compile(r"[a-z0-9_./-]+(, [a-z0-9_./-]+)*: \S.*[^.\s]")
ROOT = Path(__file__).resolve().parents[2]


def wrong(subjects: Iterable[str]) -> list[str]:
    """What is wrong with each subject that breaks the rule."""
    found = []
    for subject in subjects:
        if len(subject) > LONGEST:
            found.append(f"{subject!r} has {len(subject)} characters, more than {LONGEST}")
        elif not SUBJECT.fullmatch(subject):
            found.append(f"{subject!r} is not 'room: what changes'")
    return found


def no_commands(subjects: Iterable[str]) -> list[str]:
    """What is wrong with each subject that does not say what the commit does, as a command."""
    return [
        f"{subject!r} does not begin with a verb: say what to do, as in 'native: form a torus of many hosts'"
        for subject in subjects
        if NO_COMMAND.fullmatch(subject)
    ]


def since(commit: str) -> list[str]:
    """Subjects of the commits after this one, or of all where the clone does not have it."""
    known = (
        subprocess.run(["git", "cat-file", "-e", commit], cwd=ROOT, capture_output=True, check=False).returncode == 0
    )
    command = ["git", "log", "--no-merges", "--format=%H %s", f"{commit}..HEAD" if known else "HEAD"]
    lines = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return [line.partition(" ")[2] for line in lines if not line.startswith(BESIDE)]


if __name__ == "__main__":
    if found := wrong(since(SINCE)) + no_commands(since(IMPERATIVE_SINCE)):
        sys.exit("\n".join(["commit subjects (CONTRIBUTING.md):", *found]))
