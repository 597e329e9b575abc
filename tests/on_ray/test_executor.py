"""``RayExecutor`` on a real Ray of two nodes: where ranks are, what they keep over calls, and how a call fails."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hvdtest.ray_driver import outcomes

from hvd_kernel.ray.adapter import NOT_STARTED

pytestmark = [pytest.mark.mp, pytest.mark.nightly, pytest.mark.timeout(600)]

SCRIPT = """
from hvd_kernel.ray import RayExecutor, ray_logger
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

class Bad(Exception):
    pass

def fails():
    import hvd_kernel.numpy as hvd
    hvd.init()
    if hvd.rank() == 1:
        raise Bad("shard", 1)
    hvd.barrier()

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

def given_back():
    packed.shutdown()
    packed.shutdown()
    while ray.available_resources().get("CPU") != 4.0:
        time.sleep(0.1)
    return len(ray.util.placement_group_table()) and {each["state"] for each in ray.util.placement_group_table().values()} == {"REMOVED"}

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
    at = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(group, placement_group_capture_child_tasks=True)
    task = ray.remote(run).options(num_cpus=1, scheduling_strategy=at)
    return [ray.get(task.remote(False)), ray.get(task.remote(True))]

tell(start, ranks, state, one, variables, references, cause, after_that, busy, raised_by_reference, after_a_reference, values)
tell(refusing, death, given_back, ended, spread, devices, raising_class, no_room, within_a_group)
ray.shutdown()
made.shutdown()
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    return outcomes(SCRIPT, tmp_path_factory.mktemp("ray"))


def test_ranks_are_numbered_node_by_node(told: Mapping[str, Any]) -> None:
    assert told["start"] is None
    assert told["ranks"] == [[0, 3, 0, 2, 0, 12], [1, 3, 1, 2, 0, 12], [2, 3, 0, 1, 1, 12]]
    assert told["references"] == [[0, 3, 0, 2, 0, 6], [1, 3, 1, 2, 0, 6], [2, 3, 0, 1, 1, 6]]


def test_so_many_hosts_have_so_many_ranks_each(told: Mapping[str, Any]) -> None:
    assert told["spread"] == [[0, 4, 0, 2, 0, 10], [1, 4, 1, 2, 0, 10], [2, 4, 0, 2, 1, 10], [3, 4, 1, 2, 1, 10]]


def test_an_object_of_each_rank_lives_over_calls(told: Mapping[str, Any]) -> None:
    assert told["state"] == [[16] * 3, [22] * 3]
    assert told["one"] == 22


def test_ranks_have_the_variables_and_the_ids_of_their_nodes(told: Mapping[str, Any]) -> None:
    assert told["variables"] == [["3", True, "2"], ["3", True, "2"], ["3", True, "1"]]


def test_each_rank_sees_the_gpus_of_all_of_its_node(told: Mapping[str, Any]) -> None:
    assert told["devices"] == [["0", "1"]] * 4


def test_what_a_rank_raises_is_the_cause_and_the_next_call_works(told: Mapping[str, Any]) -> None:
    failed = told["cause"]
    assert (failed["raised"], failed["cause"], failed["args"]) == ("RankFailed", "Bad", ["shard", "1"])
    assert failed["text"].startswith("rank 1 of 3 raised Bad: ('shard', 1)\n\nTraceback (most recent call last):\n")
    assert "hvd_kernel" not in failed["text"], "the frames are the user's"
    assert told["after_that"] == [[28] * 3, [[0, 3, 0, 2, 0, 6], [1, 3, 1, 2, 0, 6], [2, 3, 0, 1, 1, 6]]]


def test_idle_ranks_are_interrupted_when_one_fails(told: Mapping[str, Any]) -> None:
    assert (told["busy"]["raised"], told["busy"]["args"]) == ("RankFailed", ["alone"])


def test_a_reference_raises_the_exception_itself(told: Mapping[str, Any]) -> None:
    assert told["raised_by_reference"] == ["shard", 1]
    assert told["after_a_reference"] == [34] * 3


def test_callbacks_get_what_ranks_log_in_order(told: Mapping[str, Any]) -> None:
    assert told["values"] == [[{"row": 0}, {"row": 1}], [0, 0, 1, 1, 2, 2]]


def test_what_a_callback_raises_is_raised(told: Mapping[str, Any]) -> None:
    assert told["refusing"]["text"] == "('value', 5)"


def test_a_rank_that_dies_is_named_with_rays_error(told: Mapping[str, Any]) -> None:
    assert (told["death"]["raised"], told["death"]["cause"]) == ("RankDied", "ActorDiedError")
    assert told["death"]["text"].startswith("rank 1 of 3 ended before its function returned: The actor died")


def test_shutdown_gives_everything_back(told: Mapping[str, Any]) -> None:
    assert told["given_back"] is True
    assert told["ended"]["text"] == NOT_STARTED


def test_what_the_class_raises_is_the_cause(told: Mapping[str, Any]) -> None:
    assert (told["raising_class"]["raised"], told["raising_class"]["args"]) == ("RankFailed", ["made"])


def test_resources_that_are_not_there_are_told(told: Mapping[str, Any]) -> None:
    assert told["no_room"]["raised"] == "TimeoutError"
    begin = (
        "Placement group creation timed out. Make sure your cluster either has enough resources or use an autoscaling "
        "cluster. Current resources available: {"
    )
    assert told["no_room"]["text"].startswith(begin)
    assert told["no_room"]["text"].count("{'CPU': 1}") == 9


def test_a_placement_group_of_the_callers_is_used_and_stays(told: Mapping[str, Any]) -> None:
    assert told["within_a_group"] == [[True, "CREATED"], [False, "CREATED"]]
