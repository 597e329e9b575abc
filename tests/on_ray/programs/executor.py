"""``RayExecutor`` on a cluster of two nodes."""

import os
import time
from typing import TYPE_CHECKING

import ray

from hvd_kernel.ray import RayExecutor, ray_logger

if TYPE_CHECKING:
    from driver_cases import report_cases
    from failing_function import Bad, fails
    from ray_cluster import connected, node

made, others = connected(node(2, 2), node(2, 2))
settings = RayExecutor.create_settings(timeout_s=100)


def place(offset, factor=1):
    import numpy as np

    import hvd_kernel.numpy as hvd

    hvd.init()
    total = hvd.allreduce(np.array([hvd.rank() + offset]), op=hvd.Sum)
    return [hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), factor * int(total[0])]


class Counter:
    def __init__(self, start, step=1):
        self.value, self.step = start, step

    def add(self):
        import numpy as np

        import hvd_kernel.numpy as hvd

        hvd.init()
        self.value += int(hvd.allreduce(np.array([self.step]), op=hvd.Sum)[0])
        return self.value


def logs(rows):
    for row in range(rows):
        ray_logger.log({"row": row})
        ray_logger.log({"rank": int(os.environ["HOROVOD_RANK"])}, chief_only=False)


packed = RayExecutor(settings, num_workers=3)


def start():
    packed.start(Counter, [10], {"step": 2}, extra_env_vars={"GIVEN": 3})


def ranks():
    return packed.run(place, (1,), {"factor": 2})


def state():
    return [packed.execute(lambda counter: counter.add()), packed.execute(lambda counter: counter.add())]


def one():
    return packed.execute_single(lambda counter: counter.value)


def variables():
    found = packed.run(lambda: [os.environ.get(name) for name in ("GIVEN", "HOROVOD_HOSTNAME", "HOROVOD_LOCAL_SIZE")])
    nodes = [each["NodeID"] for each in ray.nodes()]
    return [[given, nodes.index(host) >= 0, size] for given, host, size in found]


def references():
    return ray.get(packed.run_remote(place, [1]))


def cause():
    return packed.run(fails)


def after_a_reference():
    return packed.execute(lambda counter: counter.add())


def after_that():
    return [packed.execute(lambda counter: counter.add()), packed.run(place, (1,))]


def busy():
    def waits():
        if os.environ["HOROVOD_RANK"] == "1":
            raise Bad("alone")
        time.sleep(1000)

    return packed.run(waits)


def raised_by_reference():
    try:
        ray.get(packed.run_remote(fails)[1])
    except Bad as error:
        return error.cause.args


def values():
    found = []
    packed.run(logs, [2], callbacks=[found.append])
    return [[each for each in found if "row" in each], sorted(each["rank"] for each in found if "rank" in each)]


def refusing():
    def refuse(value):
        raise Bad("value", value["row"])

    return packed.run(lambda: ray_logger.log({"row": 5}), callbacks=[refuse])


def death():
    def dies():
        import hvd_kernel.numpy as hvd

        hvd.init()
        if hvd.rank() == 1:
            os._exit(3)
        hvd.barrier()

    return packed.run(dies)


def run_later():
    return packed.run(place, (1,))


def run_remote_later():
    return packed.run_remote(place, [1])


def execute_later():
    return packed.execute(lambda counter: counter.value)


def single_later():
    return packed.execute_single(lambda counter: counter.value)


def single_dead():
    return packed.execute_single(lambda _: os._exit(3))


def given_back():
    packed.shutdown()
    packed.shutdown()
    while ray.available_resources().get("CPU") != 4.0:
        time.sleep(0.1)
    return len(ray.util.placement_group_table()) and {
        each["state"] for each in ray.util.placement_group_table().values()
    } == {"REMOVED"}


def ended():
    return packed.run(place, (1,))


def spread():
    executor = RayExecutor(settings, num_hosts=2, num_workers_per_host=2)
    executor.start()
    found = executor.run(place, (1,))
    executor.shutdown()
    return found


def devices():
    executor = RayExecutor(settings, num_hosts=2, num_workers_per_host=2, use_gpu=True)
    executor.start()
    found = executor.run(lambda: os.environ["CUDA_VISIBLE_DEVICES"])
    executor.shutdown()
    return [sorted(each.split(",")) for each in found]


def raising_class():
    class Broken:
        def __init__(self):
            raise Bad("made")

    executor = RayExecutor(settings, num_workers=1)
    executor.start(Broken)


def no_room():
    executor = RayExecutor(RayExecutor.create_settings(placement_group_timeout_s=1), num_workers=9)
    executor.start()


def within_a_group():
    def run(own):
        executor = RayExecutor(settings, num_workers=1, use_current_placement_group=not own)
        executor.start()
        groups = executor.execute(lambda _: ray.util.get_current_placement_group().id.hex())
        mine = ray.util.get_current_placement_group().id.hex()
        executor.shutdown()
        return groups == [mine], ray.util.placement_group_table()[mine]["state"]

    group = ray.util.placement_group([{"CPU": 1}] * 2)
    at = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(
        group, placement_group_capture_child_tasks=True
    )
    task = ray.remote(run).options(num_cpus=1, scheduling_strategy=at)
    return [ray.get(task.remote(False)), ray.get(task.remote(True))]


report_cases(
    start,
    ranks,
    state,
    one,
    variables,
    references,
    cause,
    after_that,
    busy,
    raised_by_reference,
    after_a_reference,
    values,
)
report_cases(
    refusing,
    death,
    run_later,
    run_remote_later,
    execute_later,
    single_later,
    single_dead,
    given_back,
    ended,
    spread,
    devices,
    raising_class,
    no_room,
    within_a_group,
)
ray.shutdown()
made.shutdown()
