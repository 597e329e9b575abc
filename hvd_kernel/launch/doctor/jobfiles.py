"""Job files of platforms in a project: those that a reader knows run with ``hvdrun job run FILE``."""

from __future__ import annotations

from operator import attrgetter

from hvd_kernel.jobs import formats
from hvd_kernel.jobs.spec import JobError
from hvd_kernel.launch.doctor.finding import Finding, Verdict


def findings(text: str, name: str) -> list[Finding]:
    """Read a YAML file; one that is no job's says nothing."""
    for reader in filter(attrgetter("is_yaml"), formats.READERS):
        try:
            if not reader.matches(text, name):
                continue
            spec = formats.read(text, name, reader.kind)
        except JobError as error:
            said = str(error).removeprefix(f"{name}:").strip()
            return [Finding(name, 1, reader.kind, Verdict.NOT, "hvdrun cannot read it", said)]
        run = f"hvdrun job run {name}"
        found = [Finding(name, 1, f"{reader.kind}, {spec.size} ranks", Verdict.RUNS, f"`{run}` runs it")]
        return found + [Finding(name, 1, reader.kind, Verdict.NOTE, each) for each in spec.warnings]
    return []
