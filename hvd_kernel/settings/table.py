"""Table of all settings: those of the core, of the package and of the notebook.

Parts of the package read their settings themselves; all values are checked together with the core's.
"""

from __future__ import annotations

from hvd_kernel.settings.core import CORE_SETTINGS
from hvd_kernel.settings.setting import (
    Setting,
    anything,
    cluster_name,
    devices,
    flag,
    number,
    one_of,
    size,
    size_or_auto,
    whole,
)

NOTEBOOK_SETTINGS = (
    Setting(
        ("HVD_RANKS",),
        whole(1),
        "",
        "number of ranks that a notebook starts; empty: one per slot of the hosts, else one per GPU, else one per "
        "core, at most four",
        flag="-np",
    ),
    Setting(("HVD_HOSTS",), anything, "", "where a notebook's ranks run, as in h1:4,h2:4; empty: here", flag="-H"),
    Setting(
        ("HVD_HOSTFILE",), anything, "", "the same, from a file of lines `host slots=N`; not both", flag="--hostfile"
    ),
    Setting(("HVD_MPI_ARGS",), anything, "", "more arguments for the mpiexec that starts them", flag="--mpi-args"),
    Setting(
        ("HVD_ON_CPUS",),
        number(0.0),
        "1",
        "CPUs that each rank of `%%hvdrun --on ray` or `--on k8s` requests; Spark's are spark.task.cpus",
    ),
    Setting(
        ("HVD_ON_GPUS",),
        number(0.0),
        "0",
        "GPUs that each of them requests; Spark's are spark.task.resource.gpu.amount",
    ),
    Setting(("HVD_ON_IMAGE",), anything, "", "image of the pods of `--on k8s`, which has this package in it"),
    Setting(
        ("HVD_KEEP",),
        cluster_name,
        "0",
        "1, or a name: a notebook's ranks outlive its kernel, as with `%hvd start --keep`; 0: they end with it",
        flag="--keep",
    ),
    Setting(
        ("HVD_RESPAWN",),
        one_of("auto", "off"),
        "off",
        "auto: cells replace ranks that die: elastic.run at once, others at the next cell; as `--respawn auto`",
        flag="--respawn",
    ),
    Setting(
        ("HVD_SPARES",),
        whole(0, 16),
        "1",
        "processes that a notebook's cluster keeps ready, imports done, to take a dead rank's place; fewer where "
        "memory is short. Where it is set, of hvdrun's elastic jobs each host, as with --spares",
    ),
    Setting(
        ("HVD_POOL",),
        number(0.0),
        "0",
        "minutes that a set of warm ranks waits for this user's next notebook, which then starts in about a second; 0: "
        "none is started. They hold memory, with torch about 250 MB each",
    ),
    Setting(
        ("HVD_KEEP_HOURS",),
        number(0.0, open_end=True),
        "12",
        "hours that detached ranks (`%hvd start --keep`) wait for a kernel, whatever they do, before they end",
    ),
    Setting(
        ("HVD_LOG_MAX_MB",),
        whole(1),
        "1024",
        "size of the log that a notebook's rank keeps of each of its streams, in MiB; then the older half is dropped",
    ),
    Setting(
        ("HVD_KERNEL_NONINTERACTIVE",),
        one_of("0", "1"),
        "0",
        "1: the notebook runs without a user, as under nbconvert or papermill: a rank that requests input gets an "
        "error, and cells show their final output only, once and in order; IPP_NONINTERACTIVE=1 has the same effect",
    ),
    Setting(
        ("HVD_MAX_MOVE",),
        size,
        "1073741824",
        "bytes (or 512M, 4G) that a push, a pull or `-o` may move, over all ranks together; --force lifts it",
    ),
)


_LEVELS = ("trace", "debug", "info", "warning", "error", "fatal")
_ONE = one_of("0", "1")

PACKAGE_SETTINGS = (
    # The settings with ``anything`` are checked by their readers.
    Setting(
        ("HOROVOD_RANK", "HOROVOD_SIZE"),
        anything,
        "",
        "this process's rank, and how many there are",
        set_by_others=True,
    ),
    Setting(
        ("HOROVOD_CONTROLLER_ADDR", "HOROVOD_CONTROLLER_PORT"),
        anything,
        "",
        "address and free port of rank 0's host, for the rendezvous without MPI or torchrun",
        set_by_others=True,
    ),
    Setting(
        ("HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT"),
        anything,
        "",
        "where no HOROVOD_CONTROLLER_ADDR is set: the HTTP store of a launcher of Horovod's, by which ranks learn "
        "where rank 0 is",
        set_by_others=True,
    ),
    Setting(
        ("HVD_BOOTSTRAP",),
        anything,
        "",
        "mpi, tcp or none: where rank and size come from; none: size 1",
        set_by_others=True,
    ),
    Setting(("HVD_FAILPOINT",), anything, "", "for tests: points at which this process fails", set_by_others=True),
    Setting(
        ("HVD_GPU",),
        one_of("core", "staged"),
        "core",
        "core: the core works on tensors in GPU memory, as HVD_GPU_OPERATIONS defines; if it cannot, torch copies them "
        "as with staged, and the ranks log why; staged: torch copies them through pinned host memory, and the core "
        "never accesses the device",
    ),
    Setting(
        ("HVD_GUARD",),
        one_of("on", "off"),
        "on",
        "on: ranks that take optimizer steps and exchange nothing, or whose parameters differ, get a warning in cell, "
        "panel and log; off: they may train different models. A cell turns it off by `os.environ`",
    ),
    Setting(
        ("HVD_GPUS",),
        devices,
        "auto",
        "devices of the ranks that `%%hvdrun` or hvdrun starts, as with --gpus: auto, all, none or numbers as in 0,1",
        flag="--gpus",
    ),
    Setting(
        ("HVD_KEEP_MEMORY",),
        size_or_auto,
        "auto",
        "bytes (or 512M, 4G) of freed memory that a rank keeps for its next step, in huge pages where Linux allows it; "
        "auto: the ranks of a host together an eighth of its memory; 0: glibc's own behaviour. A notebook's rank "
        "returns it after half a minute without a cell. A user's MALLOC_ variables or GLIBC_TUNABLES for malloc win",
    ),
    Setting(
        ("HVD_MPS",),
        _ONE,
        "1",
        "1: ranks that share a device of their host get a private daemon of NVIDIA's MPS, where that is installed and "
        "none runs yet; 0: they take turns on it, as with --no-mps",
        flag="--no-mps",
    ),
    Setting(
        ("HVD_TORCH",),
        one_of("on", "off"),
        "on",
        "on: ranks have torchrun's variables (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, "
        "MASTER_PORT) and torch.distributed's backend hvd, so that libraries such as accelerate train one model; off: "
        "neither, each rank trains a model of its own",
    ),
    Setting(
        ("HVD_TORCH_ADDRESS",),
        anything,
        "",
        "host and port of rank 0 from which MASTER_ADDR and MASTER_PORT were set",
        set_by_others=True,
    ),
    Setting(
        ("HVD_JAX",),
        one_of("xla", "callback", "stream"),
        "xla",
        "how JAX programs reach other ranks: xla: on the CPU by a handler in XLA, on a GPU by Python; callback: by "
        "Python, slower, where an XLA cannot have that handler; stream: as xla, and on a GPU behind XLA's stream, "
        "tried on one with sums alone",
    ),
    Setting(("HVD_INSECURE",), _ONE, "0", "1: allow a rendezvous over a network without a secret"),
    Setting(
        ("HVD_DYNAMIC_PROCESS_SETS", "HOROVOD_DYNAMIC_PROCESS_SETS"),
        flag,
        "0",
        "1: process sets may be added and removed after init, as with init(process_sets='dynamic')",
    ),
    Setting(("HOROVOD_ELASTIC",), flag, "0", "1: DistributedOptimizer reduces also while there is one rank only"),
    Setting(
        ("HVD_ELASTIC_TIMEOUT", "HOROVOD_ELASTIC_TIMEOUT"),
        number(0.0, open_end=True),
        "600",
        "seconds that `elastic.run` waits for all ranks to initialize again; the first time the start timeout counts",
    ),
    Setting(("HVD_RESET_LIMIT",), whole(0), "", "how often `elastic.run` initializes the ranks again before it raises"),
    Setting(
        ("HVD_GRACE_PERIOD",),
        number(0.0),
        "",
        "seconds that the ranks of hvdrun get between SIGTERM and SIGKILL; empty: 5 after a rank has failed; where the "
        "job is cancelled as long as the platform allows, 30 without one",
        flag="--grace-period",
    ),
    Setting(
        ("HVD_HANG_TIMEOUT",),
        number(0.0, open_end=True),
        "120",
        "seconds that the ranks of an elastic job wait in a reset for one that does not come, until it is replaced",
    ),
    Setting(
        ("HVD_SLOT_FAILURES",),
        whole(1),
        "",
        "of an elastic job: failures in a slot after which it is left out; else 3, with a cooldown range 1",
    ),
    Setting(
        ("HVD_HOST_FAILURES",),
        whole(1),
        "2",
        "of an elastic job: number of failed slots with which a host is left out; all of them if it has fewer",
    ),
    Setting(
        ("HVD_WORKER",),
        anything,
        "",
        "of an elastic job: this process's number, which no other process of the job ever has",
        set_by_others=True,
    ),
    Setting(
        ("HVD_SLOT",),
        anything,
        "",
        "of an elastic job: this process's slot on its host, which it keeps; hvd.local_rank() is the same while all "
        "slots of the host are filled",
        set_by_others=True,
    ),
    Setting(
        ("HVD_COMPAT",),
        one_of("0", "1", "shadow"),
        "1",
        "1: in ranks, notebooks and after `hvdrun --install-horovod` `import horovod` gives this package where Horovod "
        "is not installed; shadow: also where it is; 0: never",
    ),
    Setting(
        ("HVD_TRACK",),
        anything,
        "off",
        "where hvd.log writes besides the panel: off, on, or some of tensorboard:FOLDER, jsonl:FILE, mlflow:URI, "
        "polyaxon:FOLDER and per-rank, with commas",
    ),
    Setting(
        ("HVD_TRACK_RUN",),
        anything,
        "",
        "the tracked run, 32 hexadecimal digits; hvdrun makes one per job",
        set_by_others=True,
    ),
    Setting(("HVD_LOG_LEVEL", "HOROVOD_LOG_LEVEL"), one_of(*_LEVELS), "warning", "what the core writes on stderr"),
    Setting(
        ("HVD_LOG_HIDE_TIME", "HOROVOD_LOG_HIDE_TIME"),
        flag,
        "1",
        "0: prefix each line that the core writes with the time",
    ),
)


SETTINGS = (*CORE_SETTINGS, *PACKAGE_SETTINGS, *NOTEBOOK_SETTINGS)
