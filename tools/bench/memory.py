"""Memory that a rank costs: ours beside torch's Gloo and MPI. Prints a table, in MiB per rank.

    python tools/bench/memory.py [RANKS]     2

Each way starts its ranks with ``mpiexec``, one way after the other: figures of memory do not depend on other work.

Terms.
  own         the proportional set size (Pss): a page that n processes share counts as 1/n for each
  init        own after the library is ready, less own before it was imported
  gradients   own after 1 GiB of gradients has been reduced, less own with the gradients alone: what stays
  most        the highest resident set (VmHWM) in the course of it, less the same: what is needed for a moment
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

MIB = 1 << 20
GRADIENTS, LAYERS = 1 << 30, 64
Ready = Callable[[], Callable[[], Any]]  # the library, then what reduces; between the two the gradients are made


def own() -> float:
    """Return the proportional set size of this process in bytes."""
    return _field("smaps_rollup", "Pss:")


def highest() -> float:
    """Return the peak resident bytes since ``forget_highest``."""
    return _field("status", "VmHWM:")


def forget_highest() -> None:
    """Reset the peak of resident bytes."""
    Path("/proc/self/clear_refs").write_text("5")


def _field(file: str, name: str) -> float:
    lines = Path(f"/proc/self/{file}").read_text().splitlines()
    return next(int(line.split()[1]) * 1024.0 for line in lines if line.startswith(name))


def ours_calls() -> Ready:
    """Reduce NumPy arrays, one call for each, in place."""
    import numpy as np

    import hvd_kernel.numpy as hvd

    hvd.init()

    def ready() -> Callable[[], Any]:
        arrays = [np.ones(GRADIENTS // LAYERS // 4, np.float32) for _ in range(LAYERS)]
        return lambda: [hvd.allreduce_(array, name=f"g{i}", op=hvd.Sum) for i, array in enumerate(arrays)]

    return ready


def mpi_calls() -> Ready:
    """Reduce with this environment's MPI, in place."""
    import numpy as np
    from mpi4py import MPI

    def ready() -> Callable[[], Any]:
        arrays = [np.ones(GRADIENTS // LAYERS // 4, np.float32) for _ in range(LAYERS)]

        def reduce() -> None:
            for array in arrays:
                MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, array)

        return reduce

    return ready


def gloo_calls() -> Ready:
    """Reduce with torch.distributed's Gloo, in place."""
    import torch

    dist = _gloo()

    def ready() -> Callable[[], Any]:
        tensors = [torch.ones(GRADIENTS // LAYERS // 4) for _ in range(LAYERS)]
        return lambda: [dist.all_reduce(tensor) for tensor in tensors]

    return ready


def ours_training() -> Ready:
    """Train two steps with DistributedOptimizer around SGD."""
    import hvd_kernel.torch as hvd

    hvd.init()

    def ready() -> Callable[[], Any]:
        model, optimizer = _model()
        return _steps(model, hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters()))

    return ready


def ddp_training(**options: Any) -> Ready:
    """Train two steps with DistributedDataParallel over Gloo around SGD."""
    _gloo()

    def ready() -> Callable[[], Any]:
        from torch.nn.parallel import DistributedDataParallel

        model, optimizer = _model()
        return _steps(DistributedDataParallel(model, **options), optimizer)

    return ready


def _gloo() -> Any:
    import torch.distributed as dist

    rank, size = (int(os.environ[f"OMPI_COMM_WORLD_{name}"]) for name in ("RANK", "SIZE"))
    dist.init_process_group("gloo", init_method=f"file://{os.environ['MEETING']}", rank=rank, world_size=size)
    return dist


def _model() -> tuple[Any, Any]:
    """Return a model with parameters of that size and gradients that stay from step to step; no momentum."""
    import torch

    side = int((GRADIENTS // LAYERS // 4) ** 0.5)
    model = torch.nn.Sequential(*(torch.nn.Linear(side, side, bias=False) for _ in range(LAYERS)))
    return model, torch.optim.SGD(model.parameters(), lr=0.0)


def _steps(model: Any, optimizer: Any) -> Callable[[], Any]:
    import torch

    first = next(model.parameters())

    def step() -> None:
        for _ in range(2):
            optimizer.zero_grad(set_to_none=False)
            model(torch.zeros(1, first.shape[1])).sum().backward()
            optimizer.step()

    return step


WAYS: dict[str, tuple[str, Callable[[], Ready]]] = {
    "ours": ("allreduce_ of NumPy, one by one", ours_calls),
    "mpi": ("Open MPI's Allreduce, one by one", mpi_calls),
    "gloo": ("Gloo's all_reduce, one by one", gloo_calls),
    "ours_training": ("DistributedOptimizer", ours_training),
    "ddp_training": ("DistributedDataParallel, Gloo", ddp_training),
    "ddp_view_training": (
        "the same, gradient_as_bucket_view=True",
        lambda: ddp_training(gradient_as_bucket_view=True),
    ),
}


def measured(way: str) -> dict[str, float]:
    """Return the figures of one rank, in MiB."""
    import numpy as np

    training = way.endswith("training")
    if training or way == "gloo":
        import torch

        torch.set_num_threads(1)
    before = own()
    ready = WAYS[way][1]()
    init = own()
    reduce = ready()
    # What the caller itself has: gradients of a training are made by its first backward pass.
    alone = own() + (GRADIENTS if training else 0)
    forget_highest()
    resident = highest()
    reduce()
    del np
    more = highest() - resident - (GRADIENTS if training else 0)
    return {
        "init": (init - before) / MIB,
        "gradients": (own() - alone) / MIB,
        "most": more / MIB,
    }


def ranks_of(way: str, size: int) -> list[dict[str, float]]:
    """Return the figures of every rank."""
    with tempfile.TemporaryDirectory() as folder:
        command = [str(Path(sys.prefix, "bin", "mpiexec")), "--oversubscribe", "--allow-run-as-root", "-n", str(size)]
        command += [sys.executable, "-P", __file__, "rank", way, folder]
        subprocess.run(command, check=True, env=os.environ | {"MEETING": f"{folder}/meeting"})
        return [json.loads(file.read_text()) for file in Path(folder).glob("*.json")]


def main() -> None:
    """Run as a rank, or print the table."""
    if sys.argv[1:2] == ["rank"]:
        _, _, way, folder = sys.argv
        Path(folder, f"{os.getpid()}.json").write_text(json.dumps(measured(way)))
        return
    size = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    sys.stdout.write("| way | init | 1 GiB of gradients | most |\n| --- | --- | --- | --- |\n")
    for way, (text, _) in WAYS.items():
        ranks = ranks_of(way, size)
        cells = [f"{sum(rank[name] for rank in ranks) / size:.0f}" for name in ("init", "gradients", "most")]
        sys.stdout.write(f"| {text} | {' | '.join(cells)} |\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
