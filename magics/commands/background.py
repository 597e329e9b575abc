"""%hvdjobs and %hvdcancel: what became of the cells that run in the background."""

from __future__ import annotations

import time

from IPython.core.magic import line_magic, magics_class, no_var_expand

from hvd_kernel.diagnosis.stall import whereabouts
from hvd_kernel.errors import ClusterError, UsageError
from hvd_kernel.formatting.rank_labels import named, spans
from hvd_kernel.magics.commands import logs
from hvd_kernel.magics.commands.life import table
from hvd_kernel.magics.commands.stacks import look
from hvd_kernel.magics.context import Desk, DeskMagics
from hvd_kernel.magics.display import error_policy
from hvd_kernel.magics.display.user_error import plain_errors
from hvd_kernel.magics.jobs import FAILED, RUNNING, Job
from hvd_kernel.magics.options import Options, parse

STUCK_S = 5.0
"""How long %hvdcancel waits for ranks to obey before it says which do not."""

MAX_WHY = 200
"""Characters of an error's message in the line that announces it."""


@magics_class
class JobMagics(DeskMagics):
    """The line magics about jobs; all of them also work while one runs."""

    def __init__(self, desk: Desk) -> None:
        super().__init__(desk)
        self.jobs = desk.holder.jobs
        self.shell.events.register("pre_run_cell", self._announce)

    def close(self) -> None:
        """Hear of no cell any more."""
        self.shell.events.unregister("pre_run_cell", self._announce)

    @no_var_expand
    @line_magic
    def hvdjobs(self, line: str) -> None:
        """Show the cells that run in the background, or what one of them has given.

        ::

            %hvdjobs                         one line per job
            %hvdjobs train                   its output, as its cell would have shown it; while it runs, the text so far
            %hvdjobs --wait [train ...]      wait for it, or for all; fails as its cell would have failed
            %hvdjobs --wait --timeout 60     no longer than that; the job goes on, as it does after an interrupt
        """
        with plain_errors():
            options = parse("%hvdjobs", line)
            named_jobs = [self.jobs.find(word) for word in options.words]
            if options.wait:
                self._wait(named_jobs or [each for each in self.jobs if not each.awaited], options.timeout)
            elif named_jobs:
                self._show(named_jobs)
            else:
                self.desk.screen().say(self._table())

    @no_var_expand
    @line_magic
    def hvdcancel(self, line: str) -> None:
        """End a job as the interrupt key ends a cell: %hvdcancel NAME, or %hvdcancel all. Variables are kept."""
        with plain_errors():
            words = parse("%hvdcancel", line).words
            if len(words) != 1:
                raise UsageError("%hvdcancel: name one job, as in %hvdcancel train, or %hvdcancel all")
            jobs = [each for each in self.jobs if not each.ended.is_set()]
            if words[0] != "all":
                jobs = [job := self.jobs.find(words[0])]
                if job.ended.is_set():
                    raise UsageError(f"job {job.name} has ended already: {job.word(times=False)}")
            for job in reversed(jobs):  # those that wait first: none of them shall begin
                self.jobs.cancel(job)
            for job in jobs:
                self._see_end(job)
            if not jobs:
                self.desk.screen().say("no job runs\n")

    def _wait(self, jobs: list[Job], timeout: float | None) -> None:
        """Wait for the end of all; fail as the first that has failed, and show what went wrong with the others."""
        deadline = None if timeout is None else time.monotonic() + timeout
        for job in jobs:
            job.wait_end(timeout, None if deadline is None else max(0.0, deadline - time.monotonic()))
        failed = [job for job in jobs if job.error is not None]
        own = (job for job in failed if job.raise_error or not isinstance(job.error, error_policy.OF_THE_RANKS))
        raised = next(own, None)
        for job in failed:
            assert job.error is not None
            if job is not raised:
                error_policy.show(job.error, self.desk.screen())
        if raised is not None:
            raised.wait()

    def _see_end(self, job: Job) -> None:
        if not job.ended.wait(STUCK_S):
            raise ClusterError(
                f"job {job.name} was interrupted and has not ended within {STUCK_S:g} s: {self._stuck(job)}. "
                f"%hvdcancel {job.name} interrupts it again (the third time replaces these ranks, and only them)"
            )
        self.desk.screen().say(f"job {job.name}: {job.word(times=False)}\n")

    def _stuck(self, job: Job) -> str:
        ranks = job.watch.left if job.watch else job.ranks
        return whereabouts(look(self.desk.holder.current(), ranks)) or named(ranks)

    def _show(self, jobs: list[Job]) -> None:
        screen = self.desk.screen()
        for job in jobs:
            if job.ended.is_set():
                job.screen.replay(screen)
            elif not screen.looked_at:
                screen.say(f"job {job.name}: {job.word(times=False)}; its output comes when it has ended\n")
            else:
                screen.say(f"job {job.name}: {job.word(times=True)}{'; so far:' if job.cell else ''}\n")
                self._show_text(job)

    def _show_text(self, job: Job) -> None:
        """Show what its ranks have printed, from their logs: the renderer is its own thread's."""
        if job.cell:
            asked = Options(cell=job.cell, ranks=spans(job.ranks))
            logs.show(self.desk.screen(), self.desk.holder.current(), asked, logs.begun)

    def _table(self) -> str:
        times = self.desk.screen().looked_at
        rows = [(job.name, spans(job.ranks), job.word(times=times), _steps(job, times=times)) for job in self.jobs]
        return table([("name", "ranks", "state", "steps"), *rows]) if rows else "no jobs\n"

    def _announce(self, _info: object) -> None:
        """Say once, above the next cell's output, that a job has failed; only where a person looks."""
        screen = self.desk.screen()
        for job in self.jobs if screen.looked_at else ():
            if job.state == FAILED and not (job.awaited or job.announced):
                job.announced = True
                why = f": {first}" if (first := str(job.error).partition("\n")[0][:MAX_WHY]) else ""
                screen.say(f"job {job.name} {job.word(times=False)}{why} (%hvdjobs {job.name})\n", "stderr")


def _steps(job: Job, *, times: bool) -> str:
    return "" if job.state == RUNNING and not times else str(job.steps() or "")
