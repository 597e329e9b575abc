"""Elastic jobs on Ray."""

import contextlib
import io
import os
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import ray

from hvd_kernel import compat

if TYPE_CHECKING:
    from driver_cases import report_cases
    from ray_cluster import connected, node

compat.install()
from horovod.runner.elastic.discovery import FixedHosts

from hvd_kernel.ray import ElasticRayExecutor, RayExecutor, ray_logger

made, others = connected(node(2), node(1))


class Said(io.StringIO):
    def write(self, text):
        sys.__stderr__.write(text)
        return super().write(text)


said = Said()


def train(folder):
    import numpy as np

    import hvd_kernel.numpy as hvd

    hvd.init()
    state = hvd.elastic.ObjectState(step=0, total=0, phase=0, runs=[])

    @hvd.elastic.run
    def steps(state):
        # A phase ends when its file is there; each rank sees it at the same step, by the sum of what all have seen.
        while state.phase < 3:
            seen = Path(folder, f"phase{state.phase}").exists()
            both = hvd.allreduce(np.array([1, seen]), op=hvd.Sum)
            state.total += int(both[0])
            state.step += 1
            if not state.runs or state.runs[-1][0] != hvd.size():
                state.runs.append([hvd.size(), 0])
            state.runs[-1][1] += 1
            if both[1] == both[0]:
                state.phase += 1
            time.sleep(0.02)  # leave the cores to new ranks
            ray_logger.log({"size": hvd.size(), "phase": state.phase, "step": state.step})
            state.commit()

    steps(state)
    return [hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), state.step, state.total, state.runs]


def job(executor, name, *changes, kill=False):
    folder = Path(name)
    folder.mkdir()
    rows, heard, results = [], threading.Condition(), []

    def take(row):
        with heard:
            rows.append(row)
            heard.notify_all()

    def until(size, phase):
        with heard:
            assert heard.wait_for(lambda: rows and (rows[-1]["size"], rows[-1]["phase"]) == (size, phase), 200), rows[
                -1:
            ]

    def run():
        with contextlib.redirect_stderr(said):
            results.append(executor.run(train, (str(folder.absolute()),), callbacks=[take]))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    for phase, (size, change) in enumerate(changes):
        until(size, phase)
        (folder / f"phase{phase}").touch()
        until(size, phase + 1)
        change()
    thread.join()
    return told_of(results[0])


def told_of(results):
    [step, total, runs] = results[0][4:]
    assert all(each[4:] == results[0][4:] for each in results)
    exact = (sum(count for _, count in runs), sum(size * count for size, count in runs)) == (step, total)
    return [[size for size, _ in runs], [row[:4] for row in results], exact]


def lost_and_added():
    executor = RayExecutor(RayExecutor.create_settings(), min_workers=2, max_workers=3)
    executor.start()
    found = job(
        executor,
        "lost",
        (3, lambda: made.remove_node(others[0])),
        (2, lambda: made.add_node(**node(1))),
        (3, lambda: None),
    )
    executor.shutdown()
    return found


def lost_hard():
    executor = RayExecutor(RayExecutor.create_settings(), min_workers=2, max_workers=3)
    executor.start()
    [worker] = made.worker_nodes

    def kill():
        raylet = worker.all_processes["raylet"][0].process
        raylet.kill()
        raylet.wait()  # its workers look whether there is such a process, and a zombie is one

    def replace():
        made.remove_node(worker)
        made.add_node(**node(1))

    return job(executor, "hard", (3, kill), (2, replace), (3, lambda: None))


def taken_in_time():
    here = ray.get_runtime_context().get_node_id()
    [other] = [each.node_ip_address for each in made.worker_nodes]  # Ray takes one that was killed for alive a while
    settings = ElasticRayExecutor.create_settings(min_num_proc=1)
    settings.discovery = hosts = FixedHosts({here: 2, other: 1})
    executor = ElasticRayExecutor(settings, override_discovery=False)
    executor.start()
    job_of = type("Job", (), {"run": lambda self, fn, args, callbacks: executor.run(lambda: fn(*args), callbacks)})
    before = len(said.getvalue())
    found = job(
        job_of(), "taken", (3, lambda: hosts.set({here: 1})), (1, lambda: hosts.set({here: 2})), (2, lambda: None)
    )
    return [found, "has died" in said.getvalue()[before:]]


def killed():
    import psutil

    executor = RayExecutor(RayExecutor.create_settings(), min_workers=2, max_workers=2)
    executor.start()

    def kill():
        raylets = [each.all_processes["raylet"][0].process.pid for each in made.list_all_nodes()]
        below = [each for raylet in raylets for each in psutil.Process(raylet).children()]
        next(each for each in below if each.name().startswith("ray::_Holder")).kill()

    return job(executor, "killed", (2, kill), (2, lambda: None), (2, lambda: None))


def cause():
    def fails():
        import hvd_kernel.numpy as hvd

        hvd.init()
        raise ValueError("shard", hvd.size())

    executor = RayExecutor(RayExecutor.create_settings(), min_workers=1, max_workers=1)
    executor.start()
    return executor.run(fails)


def objects():
    class Counter:
        def __init__(self, start):
            self.start = start

    executor = RayExecutor(RayExecutor.create_settings(), min_workers=1, max_workers=2)
    executor.start(Counter, [4], extra_env_vars={"GIVEN": 1})

    def look(counter):
        import hvd_kernel.numpy as hvd

        hvd.init()
        return [counter.start, os.environ["GIVEN"]]

    return executor.execute(look)


def too_few():
    executor = RayExecutor(RayExecutor.create_settings(), min_workers=9, elastic_timeout=4)
    executor.start()
    return executor.run(train, ("",))


def references():
    executor = RayExecutor(RayExecutor.create_settings(), min_workers=1)
    executor.start()
    executor.run_remote(print)


def single():
    executor = RayExecutor(RayExecutor.create_settings(), min_workers=1)
    executor.start()
    executor.execute_single(print)


report_cases(lost_and_added, lost_hard, taken_in_time, killed, cause, objects, too_few, references, single)
ray.shutdown()
made.shutdown()
