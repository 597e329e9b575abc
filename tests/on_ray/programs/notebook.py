"""Cells whose ranks are actors of Ray."""

import os
from typing import TYPE_CHECKING

import psutil
import ray

if TYPE_CHECKING:
    from driver_cases import report_cases
    from notebook_cells import cell, died, interrupted, living, second, shell, until
    from ray_cluster import connected, node


def holders():
    raylets = [each.all_processes["raylet"][0].process.pid for each in made.list_all_nodes()]
    below = [each for raylet in raylets for each in psutil.Process(raylet).children(recursive=True)]
    return living(below, lambda each: "ray::_Holder" in each.name() or "hvd_kernel" in " ".join(each.cmdline()))


def unconnected():
    return cell("%%hvdrun --on ray -np 2", "rank")


def how_many():
    return cell("%%hvdrun --on ray", "rank")


def doubled():
    return cell("%%hvdrun --on ray -np 2 -H a:2", "rank")


def too_many():
    os.environ["HOROVOD_START_TIMEOUT"] = "5"
    found = cell("%%hvdrun --on ray -np 9", "rank")
    del os.environ["HOROVOD_START_TIMEOUT"]
    return found


def first():
    return cell(
        "%%hvdrun --on ray -np 2 -o found",
        "import os\nx = rank * 10\n(hvd.rank(), size, local_rank, os.environ['HVD_HOST'])",
    )


def places():
    nodes = [each["NodeID"] for each in ray.nodes()]
    return [[*each[:3], nodes.index(each[3]) >= 0] for each in shell.user_ns["found"]] + [
        len({each[3] for each in shell.user_ns["found"]})
    ]


def elsewhere():
    return [cell("%%hvdrun --on here -np 2", "1"), cell("%hvd resize 3"), cell("%%hvdrun --keep", "1")]


def actor_died():
    def kill(said):
        until(lambda: "here" in said.getvalue())
        psutil.Process(shell.user_ns["agents"][0]).parent().kill()

    cell("%%hvdrun -o agents", "import os, time\nos.getppid()")
    return [
        cell("%%hvdrun", "if rank == 0:\n    print('here', flush=True)\n    time.sleep(1000)\nhvd.barrier()", kill),
        cell("%hvd respawn"),
        cell("%%hvdrun", "hvd.allgather_object(rank)"),
    ]


def stopped():
    said = cell("%hvd stop")
    until(lambda: not holders())
    return [said, sorted({each["state"] for each in ray.util.placement_group_table().values()})]


def doctor():
    return cell("%hvd doctor --on ray")


report_cases(unconnected)
made, others = connected(node(1), node(1))
report_cases(
    doctor, how_many, doubled, too_many, first, places, second, elsewhere, interrupted, died, actor_died, stopped
)
ray.shutdown()
made.shutdown()
