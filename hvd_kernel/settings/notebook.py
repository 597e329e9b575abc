"""Settings of a notebook: the ranks of its cells, and their lifetime."""

from __future__ import annotations

from hvd_kernel.settings.checks import anything, cluster_name, number, one_of, size, whole
from hvd_kernel.settings.setting import Setting

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
