"""Variables of torchrun on our ranks, in which programs for ``torch.distributed`` find rank, size and store.

Terms.
  address  host and port of rank 0, where torch's ``env://`` rendezvous puts its store
"""

from __future__ import annotations

from collections.abc import Mapping

from hvd_kernel.settings import lookup

Env = Mapping[str, str]

NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
ADDRESS = "HVD_TORCH_ADDRESS"
"""Variable with the address that this package has chosen, as in 127.0.0.1:4000; users may set another one."""

_TORCHRUN = "TORCHELASTIC_"
_LAUNCHED = "TORCHELASTIC_RUN_ID"
_NUMBERS = (  # rank, size, local rank, local size; by the launcher that sets them
    ("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)
OF_MPI = tuple(name for names in _NUMBERS[1:] for name in names)
"""Variables in which MPI numbers its processes; accelerate reads them too."""


def is_enabled(env: Env) -> bool:
    """Return whether ranks get the variables, and torch the backend.

    Raises
    ------
    ConfigError
        HVD_TORCH has another value than on or off.
    """
    return lookup.value("HVD_TORCH", env) == "on"


def is_launched(env: Env) -> bool:
    """Return whether torchrun started this process."""
    return _LAUNCHED in env


def is_ours(env: Env) -> bool:
    """Return whether the address in the environment is the one that this package has chosen."""
    return (
        ADDRESS in env
        and not is_launched(env)
        and env[ADDRESS] == address_text(env.get("MASTER_ADDR", ""), env.get("MASTER_PORT", ""))
    )


def without_ours(env: Env) -> Env:
    """Return the environment without the variables of a rank that this package has numbered."""
    return {name: value for name, value in env.items() if name not in NAMES} if is_ours(env) else env


def address_text(host: str, port: int | str) -> str:
    """Return the value of the variable ``ADDRESS``."""
    return f"{host}:{port}"


def variables(numbers: tuple[int, int, int, int], host: str, port: int) -> dict[str, str]:
    """Return the variables of a rank.

    Parameters
    ----------
    numbers
        Rank, size, local rank and local size.
    host, port
        The address.

    Examples
    --------
    >>> variables((1, 2, 1, 2), "127.0.0.1", 4000)["MASTER_PORT"]
    '4000'
    """
    values = (*map(str, numbers), host, str(port))
    return dict(zip(NAMES, values, strict=True)) | {ADDRESS: address_text(host, port)}


def with_variables(env: Env) -> dict[str, str]:
    """Return the environment of a rank with torchrun's variables, by those of the launcher that has numbered it.

    It is unchanged if HVD_TORCH is off, the launcher has chosen no address, or the rank has no number yet.
    """
    numbers = next((names for names in _NUMBERS if all(name in env for name in names)), None)
    if numbers is None or ADDRESS not in env or not is_enabled(env):
        return dict(env)
    host, _, port = env[ADDRESS].rpartition(":")
    remaining = {name: value for name, value in env.items() if not name.startswith(_TORCHRUN)}
    rank, size, local_rank, local_size = (int(env[name]) for name in numbers)
    return remaining | variables((rank, size, local_rank, local_size), host, int(port))
