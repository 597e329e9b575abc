"""Batch scripts' common parts: words and variables that a shell reads back as they were."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hvd_kernel.jobs.lines import quoted
from hvd_kernel.jobs.spec import JobError, JobSpec
from hvd_kernel.jobs.writers import common

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


def word(text: str, field: str) -> str:
    """Return a text as one word of one line.

    Raises
    ------
    JobError
        It has a line end or another control character.
    """
    if "\n" in text:
        raise JobError(f"{field}: {text!r} has a line end: a script's head takes it in one line.")
    return quoted(checked(text, field))


def checked(text: str, field: str) -> str:
    """Return a text that a script can hold.

    Raises
    ------
    JobError
        It has a control character.
    """
    found = _CONTROL.search(text)
    if found:
        raise JobError(
            f"{field}: {text!r} has the control character {found[0]!r}, which no script can hold: leave it out."
        )
    return text


def body(spec: JobSpec, started: Sequence[str]) -> str:
    """Return the lines of the script: variables, then what starts each step. A variable without a value is taken over.

    Raises
    ------
    JobError
        A name is none that a shell takes, or a control character is there.
    """
    found = []
    for variable in spec.environment:
        if not _IDENTIFIER.fullmatch(variable.name):
            raise JobError(f"environment: a script takes no variable {variable.name!r}: rename it, or leave it out.")
        if variable.name in common.SECRETS:
            continue
        value = "" if variable.value is None else f"={quoted(checked(variable.value, variable.name))}"
        found.append(f"export {variable.name}{value}")
    return "".join(f"{line}\n" for line in (*found, *(checked(line, "steps") for line in started)))


def lost(spec: JobSpec) -> list[str]:
    """Return a sentence on each thing that a batch script does not say."""
    image = [f"the image {spec.image} is left out: ranks run in the environment of the cluster"] if spec.image else []
    return image + common.kept_secret(spec, "each run has one of its own")


def rendezvous_notes(spec: JobSpec) -> list[str]:
    """Return a sentence on where the ranks meet and by which interface, where srun starts them."""
    told = {
        "the ranks meet at the first node": spec.rendezvous is not None,
        f"interfaces {', '.join(spec.interfaces)} left out: HVD_TCP_INTERFACE names one": bool(spec.interfaces),
    }
    return [sentence for sentence, holds in told.items() if holds]
