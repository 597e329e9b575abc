"""Tables of the flags of mpirun, mpiexec and horovodrun, with their use or the alternative.

Sources: mpirun(1) of Open MPI 4 and 5; MPICH's wiki, "Using the Hydra Process Manager"; Intel MPI's reference, "Global
Hydra Options"; Horovod's ``horovodrun --help``.
"""

from __future__ import annotations

from collections.abc import Iterable

from hvd_kernel.jobs.flags import Flag, Spellings, table
from hvd_kernel.jobs.tables.knobs import KNOBS, Knob

_PLACE = "ranks fill the hosts in order and are not bound to cores"
_SHELL = "hvdrun's own agents start the ranks"
_SHOWN = "`hvdrun job plan` shows who runs where"
_OUTPUT = "`hvdrun --output-filename DIR` keeps each rank's output"
_LOOKS = "each line already has its rank as prefix, and `hvdrun --prefix-output-with-timestamp` adds the time"
_ENDS = "a rank that fails ends the others, and the job's status is its own"
_ONE_LINE = "read here is one line for all ranks: write the flags and the command on it"
_ELASTIC = "a plan is that of the start; `hvdrun` itself, with the same flags, lets the size change"

_COMMON = (
    ("np", Flag("np")),
    ("H", Flag("hosts")),
    ("hostfile", Flag("hostfile")),
)


def _variable(knob: Knob) -> list[tuple[str, Flag]]:
    """Return the rows of a flag that sets a variable; a switch has a row for each of its values."""

    def names(flags: Iterable[str]) -> str:
        return " ".join(flag.lstrip("-") for flag in flags)

    if not knob.switch:
        return [(names(knob.flags), Flag(knob.variable, 1, knob.unit))]
    on, off = (Flag(f"{knob.variable}={knob.turn(value)}", 0) for value in "10")
    return [(names(knob.flags), on), (names(knob.off), off)]


MPI = table(
    *_COMMON,
    ("n c", Flag("np")),
    ("host hosts", Flag("hosts")),
    ("machinefile machine f default-hostfile", Flag("hostfile")),
    ("N npernode ppn perhost", Flag("per_host")),
    ("pernode", Flag("one_per_host", 0)),
    ("x", Flag("variable")),
    ("genv env", Flag("pair", 2)),
    ("genvlist envlist", Flag("names")),
    ("wdir wd", Flag("workdir")),
    ("iface", Flag("interfaces")),
    ("mca gmca omca prtemca pmixmca", Flag("mca", 2)),
    ("map-by", Flag("map_by")),
    ("oversubscribe", Flag("oversubscribe", 0)),
    ("genvall envall v verbose q quiet nooversubscribe allow-run-as-root disable-x noconf", Flag("quiet", 0)),
    ("genvnone envnone", Flag("ignored", 0, "ranks get the environment of the shell that starts the job")),
    ("bind-to rank-by cpus-per-proc cpus-per-rank cpu-set cpu-list", Flag("ignored", 1, _PLACE)),
    ("bind-to-core bind-to-socket bind-to-none bycore bynode byslot bysocket nolocal", Flag("ignored", 0, _PLACE)),
    ("use-hwthread-cpus rr", Flag("ignored", 0, _PLACE)),
    ("order-nodes usize", Flag("ignored", 1, _PLACE)),
    ("prefix path launch-agent launcher launcher-exec bootstrap bootstrap-exec rmk", Flag("ignored", 1, _SHELL)),
    ("tune am personality dvm-uri gtool gtoolfile", Flag("ignored", 1, _SHELL)),
    ("localhost preload-files demux topolib", Flag("ignored", 1, _SHELL)),
    ("enable-x preload-binary leave-session-attached no-ready-msg", Flag("ignored", 0, _SHELL)),
    (
        "report-bindings display-map display-allocation display-devel-map print-rank-map info",
        Flag("ignored", 0, _SHOWN),
    ),
    ("display report-uri report-pid", Flag("ignored", 1, _SHOWN)),
    ("output-filename output outfile-pattern errfile-pattern", Flag("ignored", 1, _OUTPUT)),
    ("tag-output timestamp-output merge-stderr-to-stdout prepend-rank l", Flag("ignored", 0, _LOOKS)),
    ("xterm prepend-pattern", Flag("ignored", 1, _LOOKS)),
    ("stdin s", Flag("ignored", 1, "stdin goes to rank 0")),
    ("timeout", Flag("ignored", 1, "a job's time is not limited")),
    ("max-restarts", Flag("ignored", 1, _ENDS)),
    ("enable-recovery disable-recovery continuous print-all-exitcodes disable-auto-cleanup", Flag("ignored", 0, _ENDS)),
    ("configfile app", Flag("refused", 1, _ONE_LINE)),
    ("rankfile rf", Flag("refused", 1, "the order in it is not read: write -H host:slots in the order of the ranks")),
    ("arch soft", Flag("refused", 1, _ONE_LINE)),
    ("h help V version", Flag("refused", 0, "it starts no job: leave it out")),
)
HOROVOD = table(
    *_COMMON,
    ("num-proc", Flag("np")),
    ("hosts", Flag("hosts")),
    ("slots-per-host", Flag("slots")),
    ("network-interface network-interfaces", Flag("interfaces")),
    ("start-timeout", Flag("HOROVOD_START_TIMEOUT")),
    ("gpus", Flag("HVD_GPUS")),
    ("tcp", Flag("NCCL_IB_DISABLE=1", 0)),
    ("gloo verbose disable-cache", Flag("quiet", 0)),
    ("mpi", Flag("ignored", 0, "ranks meet without MPI; `hvdrun --mpi` starts them with it")),
    ("jsrun", Flag("ignored", 0, "inside LSF jsrun starts the ranks where it is available")),
    ("mpi-args binding-args", Flag("ignored", 1, "ranks are started without MPI; `hvdrun --mpi` takes it")),
    ("p ssh-port", Flag("ignored", 1, "use `hvdrun -p`, or ~/.ssh/config")),
    ("i ssh-identity-file", Flag("ignored", 1, "use `hvdrun -i`, or ~/.ssh/config")),
    ("output-filename", Flag("ignored", 1, _OUTPUT)),
    ("prefix-timestamp prefix-output-with-timestamp", Flag("ignored", 0, _LOOKS)),
    ("config-file", Flag("ignored", 1, "its values are not read: give them as flags")),
    ("min-np min-num-proc max-np max-num-proc elastic-timeout", Flag("ignored", 1, _ELASTIC)),
    ("reset-limit max-restarts host-discovery-script discovery-interval", Flag("ignored", 1, _ELASTIC)),
    ("slot-failures host-failures hang-timeout spares", Flag("ignored", 1, _ELASTIC)),
    ("blacklist-cooldown-range", Flag("ignored", 2, _ELASTIC)),
    ("v version cb check-build h help", Flag("refused", 0, "it starts no job: leave it out")),
    ("install-horovodrun uninstall-horovodrun", Flag("refused", 0, "it starts no job: leave it out")),
    ("install-horovod uninstall-horovod", Flag("refused", 0, "it starts no job: leave it out")),
    ("build-horovod-shim install-mpirun", Flag("refused", 1, "it starts no job: leave it out")),
    *(row for knob in KNOBS for row in _variable(knob)),
)
"""The use of a flag that sets a variable is the variable's name, for a switch with its value: ``NAME=value``."""
_ONE_DASH = ("np", "H", "hostfile", "p", "i", "prefix-timestamp", "v", "cb", "h")
OURS = (
    *("--gpus", "--install-", "--uninstall-", "--build-", "--max-restarts", "--discovery-interval", "--spares"),
    *("--slot-failures", "--host-failures", "--hang-timeout"),
)
"""Flags that Horovod does not have; they do not make abbreviations ambiguous."""
HOROVOD_SPELLED = Spellings(
    (*(f"-{name}" for name in _ONE_DASH), "--hostfile", *(f"--{name}" for name in HOROVOD if name not in _ONE_DASH)),
    OURS,
)
SLOTS_NOTE = "it is for hosts of -H or --hostfile that are given without slots"
MCA = {
    "btl_tcp_if_include": "",
    "oob_tcp_if_include": "",
    "plm_rsh_args": "use `hvdrun -p`, or ~/.ssh/config",
    "plm_rsh_agent": _SHELL,
    "plm_rsh_no_tree_spawn": _SHELL,
    "btl_tcp_if_exclude": "use `hvdrun --network-interfaces` to choose the ranks' interfaces",
    "oob_tcp_if_exclude": "use `hvdrun --network-interfaces` to choose the ranks' interfaces",
}
"""Parameters of Open MPI with separate notes, empty for network interfaces; ``MCA_NOTE`` is for all others."""
MCA_NOTE = "ranks choose their links (shared memory, TCP) themselves, without Open MPI"
