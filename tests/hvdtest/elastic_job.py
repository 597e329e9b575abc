"""Elastic jobs for tests: a real hvdrun on two names of this machine, hosts and failures by the epoch, not by the clock.

Terms.
  schedule  hosts by how many epochs have ended: {0: "localhost:2", 1: "localhost:2 127.0.0.1:2"}; of a list each run
            of the script prints the next, and the last one stays
  line      what rank 0 of the training has noted at the end of an epoch
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hvdtest.hvdrun import HVDRUN
from hvdtest.launch import clean_environment

TRAINING = Path(__file__).parents[1] / "elastic" / "training.py"
BOTH = "localhost:2,127.0.0.1:2"
SECONDS = 150.0

Exits = Mapping[str, Mapping[int, str]]
Hosts = str | Sequence[str]


@dataclass
class Ended:
    """A job that is over."""

    status: int
    out: str
    err: str
    lines: list[dict[str, Any]] = field(default_factory=list)

    def column(self, name: str) -> list[Any]:
        return [line[name] for line in self.lines]

    @property
    def told(self) -> str:
        lines = "\n".join(map(str, self.lines))
        return f"status {self.status}\n{self.out}\n{self.err}\n{lines}"

    @property
    def resets(self) -> dict[int, list[int]]:
        """Return the sizes that the reset callbacks of each successful worker have seen."""
        found = re.findall(r"worker (\d+) has ended as rank \d+ of \d+, resets (\[.*\])", self.out)
        return {int(worker): json.loads(sizes) for worker, sizes in found}

    def trained(self, *sizes: int, batches: int = 10) -> None:
        """Check that every batch of every epoch was done once, on the given numbers of ranks, as rank 0 and its environment report."""
        assert self.status == 0, self.told
        assert self.column("size") == [*sizes], self.told
        done = [batches * (epoch + 1) for epoch in range(len(sizes))]
        assert self.column("done") == self.column("total") == done, self.told
        assert all(self.column("once")), self.told
        assert self.column("environ") == [[0, size] for size in sizes], self.told


class ElasticJob:
    """One job, from its plan to its end."""

    def __init__(
        self,
        folder: Path,
        *,
        epochs: int = 3,
        batches: int = 10,
        commit_every: int = 1,
        exits: Exits | None = None,
        waits: Sequence[int] = (),
        looks: Sequence[int] = (),
        starts: Sequence[int] = (),
        schedule: Mapping[int, Hosts] | None = None,
    ) -> None:
        self.folder, self.log, self.runs = folder, folder / "log.jsonl", folder / "runs"
        self.log.touch()
        self.runs.touch()
        self.plan = folder / "plan.json"
        plan = {"epochs": epochs, "batches": batches, "commit_every": commit_every, "exits": exits or {}}
        plan |= {"log": str(self.log), "runs": str(self.runs), "waits": [*waits], "looks": [*looks]}
        plan |= {"starts": [*starts]}
        self.plan.write_text(json.dumps(plan))
        self.script = None if schedule is None else self._script(schedule)

    def _script(self, schedule: Mapping[int, Hosts]) -> Path:
        """Return a script that prints the hosts for the current number of lines in the log."""
        cases = []
        for lines, hosts in sorted(schedule.items()):
            several = [hosts] if isinstance(hosts, str) else [*hosts]
            turns = "".join(f"{at}) say '{each}' ;; " for at, each in enumerate(several[:-1]))
            cases.append(f"{lines}) next {lines}; case $turn in {turns}*) say '{several[-1]}' ;; esac ;;")
        *most, last = cases
        path = self.folder / "hosts.sh"
        text = f"""#!/bin/sh
say() {{ case "$1" in '!'*) echo "${{1#!}}" >&2; exit 3 ;; ?*) printf '%s\\n' $1 ;; esac; }}
next() {{ turn=$(cat {self.folder}/turn.$1 2>/dev/null | wc -c); printf x >> {self.folder}/turn.$1; }}
printf x >> {self.runs}
case $(wc -l < {self.log}) in
{chr(10).join(most)}
*{last[last.index(")") :]}
esac
"""
        path.write_text(text)
        path.chmod(0o755)
        return path

    def command(self, *flags: str) -> list[str]:
        where = ["--host-discovery-script", str(self.script), "--discovery-interval", "0.1"] if self.script else []
        return [*HVDRUN, *where, *flags, sys.executable, "-P", str(TRAINING), str(self.plan)]

    def run(self, *flags: str, seconds: float = SECONDS, **env: str) -> Ended:
        process = self.start(*flags, **env)
        try:
            out, err = process.communicate(timeout=seconds)
        finally:
            process.kill()
            process.wait()
        return self.ended(process.returncode, out, err)

    def start(self, *flags: str, **env: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command(*flags),
            env=clean_environment(**env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def ended(self, status: int, out: str, err: str) -> Ended:
        return Ended(status, out, err, [json.loads(line) for line in self.log.read_text().splitlines()])
