"""Random lives of a virtual elastic job, each by its seed."""

from __future__ import annotations

import random
from functools import partial

from hvdtest.virtual_elastic import POINTS, Chances, VirtualJob

from hvd_kernel.launch.elastic import events as e
from hvd_kernel.launch.elastic.state import DriverSettings

TROUBLE_S = 30.0
"""For so long hosts come and go."""


def drawn(seed: int) -> VirtualJob:
    """Return a job as the seed wants it, with its whole fate ahead."""
    choose = random.Random(-seed - 1)
    hosts = {name: choose.randint(1, 3) for name in "abc"[: choose.randint(1, 3)]}
    np = choose.randint(1, sum(hosts.values()))
    cooldown = choose.choice([None, None, (1.0, 2.0), (2.0, 20.0)])
    settings = DriverSettings(
        np=np,
        min_np=choose.randint(1, np),
        max_np=choose.choice([None, np, np + 1, np + 3]),
        elastic_timeout_s=60.0,
        start_timeout_s=60.0,
        patience_s=60.0,
        reset_limit=choose.choice([None] * 6 + [0, 1, 3]),
        max_restarts=choose.choice([None] * 6 + [0, 2]),
        cooldown_s=cooldown,
        slot_failures=choose.choice([None, None, 1]),
        host_failures=choose.randint(1, 2),
        last_call_s=choose.choice([0.0, 1.0, 2.0]),
        checkpoint=choose.random() < 0.3,
        seed=seed,
    )
    calm = choose.random() < 0.3
    points = choose.sample(POINTS, choose.choice([1, 1, 2, 9]))
    chances = Chances(
        death={} if calm else dict.fromkeys(points, choose.choice([0.02, 0.1, 0.3])),
        hang=0.0 if calm else choose.choice([0.0, 0.0, 0.01, 0.05]),
        well=choose.choice([0.0, 0.0, 0.3]),
        leave=choose.choice([0.0, 0.0, 0.1]),
        late=choose.choice([0.0, 0.1, 0.5]),
        failing_discovery=choose.choice([0.0, 0.3]),
        silent=choose.choice([0.0, 0.5, 1.0]),
        spare_death=choose.choice([0.0, 0.0, 0.1, 0.9]),
    )
    job = VirtualJob(settings, hosts, seed, chances, steps=choose.choice([3, 8, 12] * 10 + [400]))
    job.spares = choose.choice([0, 1, 2])
    job.discover(hosts if choose.random() < 0.8 else {})
    if not job.hosts:
        job.later(choose.uniform(0.0, 20.0), partial(job.discover, hosts))
    for _ in range(choose.choice([0, 0, 1, 2, 5])):
        job.later(choose.uniform(0.0, TROUBLE_S), partial(change_hosts, job))
    for _ in range(choose.choice([0, 0, 0, 1, 2])):
        job.later(choose.uniform(0.0, TROUBLE_S), partial(lose_host, job))
    if choose.random() < 0.03:
        job.later(choose.uniform(0.0, TROUBLE_S), lambda: job.deliver(e.EndRequested("Ctrl-C")))
    return job


def change_hosts(job: VirtualJob) -> None:
    """Have discovery answer otherwise, perhaps only for a moment."""
    before = dict(job.hosts)
    hosts = dict(job.hosts)
    for _ in range(job.random.choice([1, 1, 2])):
        name = job.random.choice("abcd")
        slots = job.random.randint(0, 3)
        hosts.pop(name, None)
        if slots:
            hosts[name] = slots
    if job.random.random() < 0.05:
        hosts = {}
    job.discover(hosts)
    if job.random.random() < 0.3:
        job.later(job.random.uniform(0.1, 3.0), partial(job.discover, before))


def lose_host(job: VirtualJob) -> None:
    """Stop a host; it may start again, and discovery may see both."""
    up = sorted(job.hosts.keys() - job.down)
    if not up:
        return
    host = job.random.choice(up)
    before = dict(job.hosts)
    job.lose(host)
    if job.random.random() < 0.5:
        seen = {name: slots for name, slots in before.items() if name != host}
        job.later(job.random.uniform(0.0, 5.0), partial(job.discover, seen))
    if job.random.random() < 0.5:
        job.later(job.random.uniform(16.0, 40.0), partial(_come_up, job, host, before[host]))


def _come_up(job: VirtualJob, host: str, slots: int) -> None:
    job.down.discard(host)
    job.discover(job.hosts | {host: slots})


def explore(seed: int) -> VirtualJob:
    """Run one schedule to its end; a job without further events must have ended with an outcome."""
    job = drawn(seed)
    try:
        job.run()
        assert job.end is not None, "nothing more happens, and the job has no end"
    except AssertionError as error:
        error.add_note(f"schedule {seed}: generation {job.driver.generation}, {job.settings}\n" + "\n".join(job.said))
        raise
    return job
