"""Function that ranks run: torch's default group without arguments, and the variables of torchrun."""


def torch_group(packages=""):
    import os
    import sys

    sys.path.append(packages)  # where torch is, if the environment lacks it
    import torch
    import torch.distributed as dist

    dist.init_process_group()
    tensor = torch.tensor([dist.get_rank() + 1.0])
    dist.all_reduce(tensor)
    kind = type(dist.group.WORLD).__name__
    dist.destroy_process_group()
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR")
    return [kind, tensor.item(), *map(os.environ.get, names), "MASTER_PORT" in os.environ]
