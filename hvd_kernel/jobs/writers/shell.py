"""Common parts of batch scripts: quoting of words and variables."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hvd_kernel.jobs.lines import quoted
from hvd_kernel.jobs.spec import JobError, JobSpec
from hvd_kernel.jobs.writers import common

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


def word(text: str, field: str) -> str:
    """Quote a text as a word on a single line.

    Raises
    ------
    JobError
        The text has a newline or another control character.
    """
    if "\n" in text:
        raise JobError(f"{field}: {text!r} has a line end: a script's head takes it in one line.")
    return quoted(checked(text, field))


def checked(text: str, field: str) -> str:
    """Return a text after checking it for control characters.

    Raises
    ------
    JobError
        The text has a control character.
    """
    match = _CONTROL.search(text)
    if match:
        raise JobError(
            f"{field}: {text!r} has the control character {match[0]!r}, which no script can hold: leave it out."
        )
    return text


def body(spec: JobSpec, commands: Sequence[str]) -> str:
    """Return the lines of the script: exported variables, then the commands of the steps.

    Raises
    ------
    JobError
        The name of a variable is invalid in a shell, or a text has a control character.
    """
    exports = []
    for variable in spec.environment:
        if not _IDENTIFIER.fullmatch(variable.name):
            raise JobError(f"environment: a script takes no variable {variable.name!r}: rename it, or leave it out.")
        if variable.name in common.SECRETS:
            continue
        value = "" if variable.value is None else f"={quoted(checked(variable.value, variable.name))}"
        exports.append(f"export {variable.name}{value}")
    return "".join(f"{line}\n" for line in (*exports, *(checked(line, "steps") for line in commands)))


def lost(spec: JobSpec) -> list[str]:
    """Return a sentence for each setting that a batch script does not support."""
    image = [f"the image {spec.image} is left out: ranks run in the environment of the cluster"] if spec.image else []
    return image + common.kept_secret(spec, "each run has one of its own")


def rendezvous_notes(spec: JobSpec) -> list[str]:
    """Return sentences about the rendezvous and the interfaces of ranks that srun starts."""
    sentences = {
        "the ranks meet at the first node": spec.rendezvous is not None,
        f"interfaces {', '.join(spec.interfaces)} left out: HVD_TCP_INTERFACE names one": bool(spec.interfaces),
    }
    return [sentence for sentence, holds in sentences.items() if holds]
