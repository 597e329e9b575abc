"""Names of Horovod's launcher and services that have no counterpart here: a table, and stand-ins that can be imported.

Programs import them beside the names that they use. A stand-in is a function, or a class to derive from, to catch or to
test with ``isinstance``; calling it raises HorovodOnly, which says what to use instead.

Terms.
  part  of Horovod, to which the names of a module belong
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

from hvd_kernel.errors import UsageError


class HorovodOnly(UsageError, NotImplementedError):
    """Raised for a function of Horovod that hvd_kernel lacks; the message says what to use instead."""


@dataclass(frozen=True)
class HorovodPart:
    """Purpose of some names in Horovod, and what to use instead here."""

    purpose: str
    instead: str


_START = "start ranks with hvdrun, horovod.run or hvd_kernel.launch.job_run.launch"
_SERVICE = HorovodPart(
    "asks Horovod's hosts for their networks and starts commands there",
    f"{_START}, which connect to the hosts automatically",
)
_STORE = HorovodPart(
    "is where ranks of Horovod's launchers find each other",
    f"{_START}, or set HOROVOD_RANK, HOROVOD_SIZE, MASTER_ADDR and MASTER_PORT for each rank",
)
_RAY = HorovodPart(
    "finds interfaces that all nodes of Ray reach", "start ranks with horovod.ray.RayExecutor, whose settings take nics"
)
_ELASTIC = HorovodPart(
    "starts and ends ranks while a job runs",
    "start the job with hvdrun --min-np N, or horovod.run(..., min_num_proc=N), whose own driver does that",
)
_FUNCTION = HorovodPart("carries a function to a rank", "call horovod.run(func, np=4)")
_TENSORFLOW = HorovodPart(
    "serves tf.data", "read a part on each rank: dataset.shard(hvd.size(), hvd.rank()).prefetch(2)"
)
LSF = HorovodPart(
    "queries IBM's jsrun and CSM", "in an LSF job write `hvdrun python train.py`, which calls jsrun if it is installed"
)
_PARSER = HorovodPart(
    "makes the flags of Horovod's own parser", "horovod.runner.launch.parse_args() reads the same command line"
)
_CORE = HorovodPart("belongs to Horovod's compiled extension", "use the functions of horovod.torch")
_MPI = HorovodPart("builds a command of mpirun", "horovod.runner.mpi_run.mpi_run(...) starts it, or `hvdrun --mpi`")
_GLOO = HorovodPart(
    "is a step of Horovod's Gloo launcher", "horovod.runner.gloo_run.gloo_run(...) does all of them, or hvdrun"
)
_KERAS = HorovodPart(
    "distinguishes Keras's optimizers", "hvd.DistributedOptimizer takes those of each Keras that is installed"
)

PLUMBING: dict[str, dict[HorovodPart, str]] = {  # a name with a capital is a class, with ! an exception
    "horovod.ray.driver_service": {_SERVICE: "_driver_fn"},
    "horovod.ray.elastic": {_ELASTIC: "TestDiscovery"},
    "horovod.ray.elastic_v2": {_ELASTIC: "TestDiscovery"},
    "horovod.ray.runner": {_RAY: "Coordinator"},
    "horovod.ray.utils": {_RAY: "detect_nics nics_to_env_var"},
    "horovod.runner": {_FUNCTION: "_HorovodArgs"},
    "horovod.common.basics": {},
    "horovod.common.util": {_CORE: "_check_extension_lambda", _KERAS: "support_non_legacy_keras_optimizers"},
    "horovod.common.process_sets": {_CORE: "_setup _init_process_sets"},
    "horovod.runner.common.service": {},
    "horovod.runner.common.service.compute_service": {
        _TENSORFLOW: "ComputeClient ComputeService RegisterDispatcherRequest RegisterDispatcherWorkerRequest"
        " ShutdownRequest WaitForDispatcherRegistrationRequest WaitForDispatcherRegistrationResponse"
        " WaitForDispatcherWorkerRegistrationRequest WaitForShutdownRequest"
    },
    "horovod.runner.common.service.driver_service": {
        _SERVICE: "AllTaskAddressesRequest AllTaskAddressesResponse BasicDriverClient BasicDriverService"
        " RegisterTaskRequest RegisterTaskToTaskAddressesRequest"
    },
    "horovod.runner.common.service.task_service": {
        _SERVICE: "AbortCommandRequest BasicTaskClient BasicTaskService CommandExitCodeRequest"
        " CommandExitCodeResponse CommandOutputNotCaptured! NotifyInitialRegistrationCompleteRequest"
        " RegisterCodeResultRequest RunCommandRequest StreamCommandOutputRequest StreamCommandStdErrRequest"
        " StreamCommandStdOutRequest WaitForCommandExitCodeRequest WaitForCommandExitCodeResponse"
    },
    "horovod.runner.common.util.network": {
        _SERVICE: "AckResponse AckStreamResponse BasicClient BasicService NoValidAddressesFound! PingRequest"
        " PingResponse Wire"
    },
    "horovod.runner.common.util.safe_shell_exec": {_SERVICE: "prefix_connection"},
    "horovod.runner.driver": {},
    "horovod.runner.driver.driver_service": {
        _SERVICE: "HorovodRunDriverClient HorovodRunDriverService get_common_interfaces get_local_interfaces"
        " _driver_fn _launch_task_servers _run_probe"
    },
    "horovod.runner.elastic.discovery": {_ELASTIC: "DiscoveredHosts HostManager HostState"},
    "horovod.runner.elastic.driver": {_ELASTIC: "ElasticDriver Results ResultsRecorder"},
    "horovod.runner.elastic.registration": {_ELASTIC: "WorkerStateRegistry"},
    "horovod.runner.elastic.rendezvous": {_ELASTIC: "create_rendezvous_handler"},
    "horovod.runner.elastic.worker": {
        _ELASTIC: "HostsUpdatedRequest WorkerNotificationClient WorkerNotificationService"
    },
    "horovod.runner.gloo_run": {
        _GLOO: "MultiFile launch_gloo register_shutdown_event _exec_command_fn _slot_info_to_command_fn",
        _ELASTIC: "launch_gloo_elastic",
    },
    "horovod.runner.http": {},
    "horovod.runner.http.http_client": {_STORE: "put_data_into_kvstore read_data_from_kvstore"},
    "horovod.runner.http.http_server": {
        _STORE: "KVStoreHTTPServer KVStoreHandler KVStoreServer RendezvousHTTPServer RendezvousHandler RendezvousServer"
    },
    "horovod.runner.js_run": {LSF: "generate_jsrun_rankfile js_run"},
    "horovod.runner.launch": {
        _PARSER: "make_check_build_action make_deprecated_bool_action make_nic_action make_override_action"
        " make_override_bool_action make_override_false_action make_override_true_action",
        _SERVICE: "_check_all_hosts_ssh_successful _get_nics",
    },
    "horovod.runner.mpi_run": {_MPI: "_get_mpi_implementation_flags"},
    "horovod.runner.run_task": {_FUNCTION: "main"},
    "horovod.runner.task": {},
    "horovod.runner.task.task_service": {
        _SERVICE: "HorovodRunTaskClient HorovodRunTaskService TaskToTaskAddressCheckFinishedSignal"
        " TaskToTaskAddressCheckFinishedSignalResponse"
    },
    "horovod.runner.task_fn": {_SERVICE: "_task_fn"},
    "horovod.runner.util.streams": {_SERVICE: "Pipe"},
}
CONSTANTS: dict[str, dict[str, Any]] = {
    "horovod.runner.common.service.task_service": {"WAIT_FOR_COMMAND_MIN_DELAY": 0.1},
    "horovod.runner.elastic.driver": {"DISCOVER_HOSTS_FREQUENCY_SECS": 1.0, "ELASTIC_TIMEOUT_SECS": 600},
    "horovod.runner.elastic.registration": {"READY": "READY", "SUCCESS": "SUCCESS", "FAILURE": "FAILURE"},
    "horovod.runner.elastic.rendezvous": {
        "GET_RANK_AND_SIZE": "rank_and_size",
        "PUT_WORKER_ADDRESSES": "worker_addresses",
    },
    "horovod.runner.elastic.worker": {
        name: name
        for name in (
            "HOROVOD_GLOO_RENDEZVOUS_ADDR",
            "HOROVOD_GLOO_RENDEZVOUS_PORT",
            "HOROVOD_GLOO_IFACE",
            "HOROVOD_HOSTNAME",
            "HOROVOD_LOCAL_RANK",
        )
    },
    "horovod.runner.http.http_server": {"SINGLE_REQUEST_TIMEOUT": 3, "BAD_REQUEST": 400, "TIMEOUT": 408, "OK": 200},
}


def names(module: str) -> dict[str, HorovodPart]:
    """Return the stand-ins of one of Horovod's modules: name -> part of Horovod."""
    return {name: part for part, listed in PLUMBING.get(module, {}).items() for name in listed.split()}


def public(module: str) -> list[str]:
    """Return the names that ``import *`` imports from a module of the table."""
    listed = [name.removesuffix("!") for name in names(module)]
    return sorted(name for name in [*listed, *CONSTANTS.get(module, {})] if not name.startswith("_"))


def run_as_main(module: str) -> NoReturn:
    """Raise HorovodOnly for ``python -m module``."""
    name, part = next(iter(names(module).items()))
    raise error(module, name, part)


def is_package(module: str) -> bool:
    """Return whether the table has modules below this one."""
    return any(other.startswith(f"{module}.") for other in PLUMBING)


def find(module: str, name: str) -> Any:
    """Return a constant or the stand-in for a name; raise AttributeError if Horovod's module lacks the name, too."""
    if name in CONSTANTS.get(module, {}):
        return CONSTANTS[module][name]
    listed = names(module)
    if name in listed:
        return (
            _function(module, name, listed[name])
            if name.strip("_")[0].islower()
            else _class(module, name, listed[name])
        )
    if f"{name}!" in listed:
        return type(
            name, (Exception,), {"__module__": module, "__doc__": "Never raised here: for programs that catch it."}
        )
    raise AttributeError(f"module {module!r} has no attribute {name!r}", name=name)


def error(module: str, name: str, part: HorovodPart) -> HorovodOnly:
    """Return the error that a call of a stand-in raises."""
    return HorovodOnly(
        f"{module}.{name} {part.purpose}; hvd_kernel, which stands in for Horovod in this process, does not have it. "
        f"Instead: {part.instead}."
    )


def _function(module: str, name: str, part: HorovodPart) -> Any:
    def stand_in(*_args: Any, **_kwargs: Any) -> NoReturn:
        raise error(module, name, part)

    stand_in.__name__ = stand_in.__qualname__ = name
    stand_in.__module__, stand_in.__doc__ = module, f"Not here: it {part.purpose}."
    return stand_in


def _class(module: str, name: str, part: HorovodPart) -> type:
    def refuse(*_args: Any, **_kwargs: Any) -> NoReturn:
        raise error(module, name, part)

    return type(name, (), {"__new__": refuse, "__module__": module, "__doc__": f"Not here: it {part.purpose}."})
