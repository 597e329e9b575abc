"""The settings of the core: one row for each of its keys."""

from __future__ import annotations

from hvd_kernel.settings.setting import (
    MOST_BYTES,
    Check,
    Setting,
    anything,
    cores,
    flag,
    not_flag,
    number,
    one_of,
    switches_off,
    timeline,
    whole,
    word,
)

TRANSPORTS = ("auto", "shm", "tcp", "mpi")
GPU_OPERATIONS = ("auto", "ring", "nccl", "prefer-nccl", "staged")
ALGORITHMS = ("auto", "direct", "slices", "ring", "hierarchical")
CORES_CHOICE = ""  # as default: the core chooses
_BY_OTHERS = {"secret", "cuda_driver"}


def _row(key: str, names: str, check: Check, default: str, doc: str) -> Setting:
    """Names without a prefix stand for HVD_<name> and HOROVOD_<name>."""
    variables: list[str] = []
    for name in names.split():
        prefixed = name.startswith(("HVD_", "HOROVOD_"))
        variables += [name] if prefixed else [f"HVD_{name}", f"HOROVOD_{name}"]
    return Setting(tuple(variables), check, default, doc, key, set_by_others=key in _BY_OTHERS)


_MESH = (
    _row(
        "transport",
        "HVD_TRANSPORT",
        one_of(*TRANSPORTS),
        "auto",
        "how ranks reach each other: auto (memory on one host, TCP between hosts), shm, tcp, mpi",
    ),
    _row(
        "tcp_interface",
        "HVD_TCP_INTERFACE HOROVOD_GLOO_IFACE",
        word,
        "",
        "network interface that TCP links listen on; empty: one that every other host can reach",
    ),
    _row("tcp_streams", "HVD_TCP_STREAMS", whole(1, 64), "1", "sockets between each two ranks of different hosts"),
    _row("slot_bytes", "HVD_SLOT_BYTES", whole(64, 64 << 20), CORES_CHOICE, "bytes of one slot of a link"),
    _row("slots", "HVD_SLOTS", whole(2, 64), CORES_CHOICE, "slots of one link"),
    _row(
        "start_timeout_s",
        "HVD_START_TIMEOUT HOROVOD_START_TIMEOUT HOROVOD_GLOO_TIMEOUT_SECONDS",
        number(0.0, open_end=True),
        "30",
        "seconds that init() waits for all ranks to appear (MPI: 600 unless set)",
    ),
    _row("host", "HVD_HOST", word, "", "name of this rank's host; empty: detected"),
    _row("fanout", "HVD_FANOUT", whole(1), "64", "children of each rank in the negotiation's tree"),
    _row(
        "secret",
        "SECRET_KEY",
        anything,
        "",
        "secret shared by all ranks, needed for a rendezvous over a network; never shown in a message",
    ),
    _row(
        "heap_bytes",
        "HVD_HEAP_BYTES",
        whole(0, MOST_BYTES),
        "0",
        "address space for the shared memory of a host's ranks; 0: as much as the machine's memory",
    ),
    _row(
        "stop_warning_s",
        "HVD_STOP_WARNING",
        number(0.0),
        "0.5",
        "seconds until a stopped rank (SIGSTOP, a debugger) that others wait for is named in the log",
    ),
    _row(
        "stop_abort_s",
        "HVD_STOP_ABORT",
        number(0.0),
        "5",
        "seconds until waiting for a stopped rank ends with RankStalled; 0: never (for debuggers)",
    ),
    _row(
        "net_timeout_s",
        "HVD_NET_TIMEOUT",
        number(0.0),
        "30",
        "seconds until ranks of another host that does not answer count as lost, at least 2; 0: never",
    ),
)

_ALGORITHMS = (
    _row(
        "allreduce_algorithm",
        "HVD_ALLREDUCE_ALGORITHM",
        one_of(*ALGORITHMS),
        "auto",
        "auto (chosen by ranks, hosts and bytes), direct, slices, ring, hierarchical; all give the same bytes",
    ),
    _row(
        "hierarchical_allreduce",
        "HIERARCHICAL_ALLREDUCE",
        flag,
        "1",
        "ranks of several hosts reduce within the host first (Horovod's default is 0)",
    ),
    _row(
        "hierarchical_allgather",
        "HIERARCHICAL_ALLGATHER",
        flag,
        "1",
        "ranks of several hosts gather within the host first (Horovod's default is 0)",
    ),
)

_NEGOTIATION = (
    _row(
        "fusion_threshold",
        "FUSION_THRESHOLD",
        whole(0, MOST_BYTES),
        "134217728",
        "most bytes in one fused operation; 0: never fuse",
    ),
    _row(
        "cycle_time_ms",
        "CYCLE_TIME",
        number(0.0, 60_000),
        "0",
        "longest time in milliseconds that a small tensor waits to be fused with others. There is no cycle here: "
        "operations start when they are requested, on a GPU when the previous ones there have ended (if processes "
        "share it: when a rank waits, or after 100 ms), so 0 is the natural value (Horovod's default is 1). Another "
        "value replaces that rule, on a GPU too",
    ),
    _row("cache_capacity", "CACHE_CAPACITY", whole(0), "1024", "names that the response cache holds; 0: no cache"),
    _row(
        "group_fusion",
        "DISABLE_GROUP_FUSION",
        not_flag,
        "0",
        "1: a group is one operation of its own, never fused with others",
    ),
    _row(
        "stall_warning_s",
        "STALL_CHECK_TIME_SECONDS",
        number(0.0),
        "60",
        "seconds after which tensors that some ranks have not submitted are reported; 0: no stall check",
    ),
    _row("stall_warning_s", "STALL_CHECK_DISABLE", switches_off, "0", "1: no stall check, whatever its time"),
    _row(
        "stall_shutdown_s",
        "STALL_SHUTDOWN_TIME_SECONDS",
        number(0.0),
        "0",
        "seconds after which the waiting ranks get RankStalled; 0: never. Ignored, with a warning, if it is "
        "shorter than the warning time or the stall check is off",
    ),
)

_AUTOTUNE = (
    _row(
        "autotune",
        "AUTOTUNE",
        flag,
        "0",
        "tune fusion threshold, cycle time, hierarchy and cache during training; explicit settings are kept",
    ),
    _row("autotune_log", "AUTOTUNE_LOG", anything, "", "path of a CSV file of the values that autotune tried"),
    _row("autotune_warmup_samples", "AUTOTUNE_WARMUP_SAMPLES", whole(0), "3", "samples discarded at the start"),
    _row("autotune_steps_per_sample", "AUTOTUNE_STEPS_PER_SAMPLE", whole(1), "10", "steps that make one sample"),
    _row(
        "autotune_max_samples",
        "AUTOTUNE_BAYES_OPT_MAX_SAMPLES",
        whole(1),
        "20",
        "points that the Bayesian search tries, each the median of five samples",
    ),
    _row(
        "autotune_noise",
        "AUTOTUNE_GAUSSIAN_PROCESS_NOISE",
        number(0.0, 1.0),
        "0.8",
        "noise of one sample, as a share of the spread of all",
    ),
    _row(
        "autotune_seed", "HVD_AUTOTUNE_SEED", whole(0, MOST_BYTES), "1", "the same seed and times give the same search"
    ),
)

_OBSERVATION = (
    _row(
        "timeline",
        "TIMELINE",
        timeline,
        "",
        "path of a Chrome trace file that rank 0 writes; DYNAMIC: none until start_timeline()",
    ),
    _row("mark_cycles", "TIMELINE_MARK_CYCLES", flag, "0", "mark every round of the negotiation in the timeline"),
    _row(
        "trace_capacity",
        "HVD_TRACE_CAPACITY",
        whole(1, 1 << 20),
        CORES_CHOICE,
        "records kept in the ring that timeline and dashboard read",
    ),
    _row(
        "thread_affinity",
        "THREAD_AFFINITY",
        cores,
        "",
        "core of each local rank's background thread, with commas between them",
    ),
    _row(
        "caller_runs_bytes",
        "HVD_CALLER_RUNS_BYTES",
        whole(0, MOST_BYTES),
        "4194304",
        "largest operation that a waiting thread executes itself instead of waking the background thread",
    ),
)

_DEVICES = (
    _row(
        "gpu_operations",
        "GPU_OPERATIONS HOROVOD_GPU_ALLREDUCE",
        one_of(*GPU_OPERATIONS),
        "auto",
        "backend of operations on GPUs: ring (the core's own, within a host), nccl, staged (through host memory); if "
        "it cannot be used, all ranks get an error with the reason; auto: the ring if possible, unless nccl is clearly "
        "faster in a trial, then nccl, then staged; prefer-nccl: nccl if each rank has a GPU of its own, else as auto",
    ),
    _row(
        "gpu_ring",
        "HVD_GPU_RING",
        one_of("auto", "slices", "persistent"),
        "auto",
        "the ring between GPUs: slices (short kernels without spinning), persistent (one long-running kernel per rank; "
        "an error if processes share a GPU, with MPS too); auto: the faster one in a trial at the first operation if "
        "each rank has a GPU of its own, else slices",
    ),
    _row(
        "gpu_timeout_s",
        "HVD_GPU_TIMEOUT",
        number(0.0),
        "600",
        "seconds that an operation may take on a GPU, with its inputs, before all ranks get RankStalled; 0: never (a "
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS that is in force and shorter counts instead)",
    ),
    _row(
        "gpu_arena_bytes",
        "HVD_GPU_ARENA_BYTES",
        whole(65536, MOST_BYTES),
        "67108864",
        "GPU memory that each rank's peers map",
    ),
    _row("cuda_driver", "HVD_CUDA_DRIVER", anything, "", "for tests: file of the CUDA driver; empty: the system's"),
)

CORE_SETTINGS = _MESH + _ALGORITHMS + _NEGOTIATION + _AUTOTUNE + _OBSERVATION + _DEVICES
