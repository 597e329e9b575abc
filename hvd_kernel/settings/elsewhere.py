"""Variables that another part reads itself; those that are not read at once are checked with the rest."""

from __future__ import annotations

from dataclasses import dataclass

from hvd_kernel.settings.checks import Check, anything, flag, number, one_of, size, whole

_LEVELS = ("trace", "debug", "info", "warning", "error", "fatal")


@dataclass(frozen=True)
class Elsewhere:
    """One row: variables, the check of their values, and what they do."""

    variables: tuple[str, ...]
    check: Check
    default: str
    doc: str


_ONE = one_of("0", "1")

ELSEWHERE = (
    # These are checked where they are read.
    Elsewhere(("HOROVOD_RANK", "HOROVOD_SIZE"), anything, "", "this process's rank, and how many there are"),
    Elsewhere(
        ("HOROVOD_CONTROLLER_ADDR", "HOROVOD_CONTROLLER_PORT"),
        anything,
        "",
        "address and free port of rank 0's host, where the ranks meet without MPI or torchrun",
    ),
    Elsewhere(
        ("HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT"),
        anything,
        "",
        "where no HOROVOD_CONTROLLER_ADDR is set: the HTTP store of a launcher of Horovod's, by which ranks learn "
        "where rank 0 is",
    ),
    Elsewhere(("HVD_BOOTSTRAP",), anything, "", "mpi, tcp or none: who says which rank this is; none: size 1"),
    Elsewhere(("HVD_FAILPOINT",), anything, "", "for tests: places where this process is to fail"),
    Elsewhere(
        ("HVD_GPU",),
        one_of("staged", "core"),
        "staged",
        "staged: torch copies tensors of a GPU through pinned host memory, and the core never sees the device; core: "
        "it works on them where they lie, as HVD_GPU_OPERATIONS says (no GPU has tried that yet)",
    ),
    Elsewhere(
        ("HVD_GPUS",),
        anything,
        "auto",
        "devices of the ranks that `%%hvdrun` or hvdrun starts, as with --gpus: auto, all, none or numbers as in 0,1",
    ),
    Elsewhere(("HVD_INSECURE",), _ONE, "0", "1: ranks may meet over a network without a secret"),
    Elsewhere(
        ("HVD_DYNAMIC_PROCESS_SETS", "HOROVOD_DYNAMIC_PROCESS_SETS"),
        flag,
        "0",
        "1: process sets may be added and removed after init, as with init(process_sets='dynamic')",
    ),
    Elsewhere(("HOROVOD_ELASTIC",), flag, "0", "1: DistributedOptimizer reduces also while there is one rank only"),
    Elsewhere(
        ("HVD_ELASTIC_TIMEOUT", "HOROVOD_ELASTIC_TIMEOUT"),
        number(0.0, open_end=True),
        "600",
        "seconds that `elastic.run` waits for all ranks to initialize again; the first time the start timeout counts",
    ),
    Elsewhere(
        ("HVD_RESET_LIMIT",), whole(0), "", "how often `elastic.run` lets the ranks initialize again before it gives up"
    ),
    Elsewhere(
        ("HVD_COMPAT",),
        one_of("0", "1", "shadow"),
        "1",
        "1: in ranks, notebooks and after `hvdrun --install-horovod` `import horovod` gives this package where Horovod "
        "is not installed; shadow: also where it is; 0: never",
    ),
    Elsewhere(
        ("HVD_TRACK",),
        anything,
        "off",
        "where hvd.log writes besides the panel: off, on, or some of tensorboard:FOLDER, jsonl:FILE, mlflow:URI, "
        "polyaxon:FOLDER and per-rank, with commas",
    ),
    Elsewhere(("HVD_TRACK_RUN",), anything, "", "the tracked run, 32 hexadecimal digits; hvdrun makes one per job"),
    Elsewhere(
        ("HVD_SPARES",),
        whole(0, 16),
        "1",
        "processes that a notebook's cluster keeps ready, imports done, to take a dead rank's place; fewer where "
        "memory is short",
    ),
    Elsewhere(
        ("HVD_RESPAWN",),
        one_of("auto", "off"),
        "off",
        "auto: a notebook's next cell after a rank's death replaces it first, as with `%hvd start --respawn auto`",
    ),
    Elsewhere(
        ("HVD_KEEP_HOURS",),
        number(0.0, open_end=True),
        "12",
        "hours that kept ranks (`%hvd start --keep`) wait for a kernel, whatever they do meanwhile, before they end",
    ),
    Elsewhere(
        ("HVD_LOG_MAX_MB",),
        whole(1),
        "1024",
        "size of the log that a notebook's rank keeps of each of its streams, in MiB; then the older half is given up",
    ),
    Elsewhere(
        ("HVD_MAX_MOVE",),
        size,
        "1073741824",
        "bytes (or 512M, 4G) that a push, a pull or `-o` may move, over all ranks together; --force lifts it",
    ),
    Elsewhere(("HVD_LOG_LEVEL", "HOROVOD_LOG_LEVEL"), one_of(*_LEVELS), "warning", "what the core writes on stderr"),
    Elsewhere(
        ("HVD_LOG_HIDE_TIME", "HOROVOD_LOG_HIDE_TIME"),
        flag,
        "1",
        "0: the time is before each line that the core writes",
    ),
)
