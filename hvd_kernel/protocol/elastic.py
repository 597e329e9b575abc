"""Elastic messages between a rank and the driver of its job: requests for a place, host updates, departures.

A rank is connected with the agent of its host (processes/rank_channel.py), which forwards them unchanged.

    worker                              driver
    Ready(generation 0)           ->              at its first init, and at each one after
                                  <-  Place       when all workers of the new generation are ready
    Registered                    ->              it has entered elastic.run: it can act on changes
                                  <-  HostsUpdated
                                  <-  Lost        another worker has failed
    Ready(generation, reason)     ->              it has left its communicator, because of a failure or a change
                                  <-  Place | Removed

Terms.
  worker      one process for its whole life, identified by a number that no other process of the job ever has
  rank        the number of a worker in one generation
  generation  one communicator of the job, counted from 1: it begins when all its workers have received their places
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from hvd_kernel.protocol.messages import MetricsSample, OptimizerSteps

REMOVED, ADDED = 1, 2
"""Bits of a host change, with the values of ``hvd.elastic.HostUpdateResult``."""

VARIABLE = "HVD_ELASTIC_DRIVER"
"""Set to 1 in a rank whose places a driver assigns: ``init`` requests one."""

WORKER = "HVD_WORKER"
"""Holds the number of a worker."""

SLOT = "HVD_SLOT"
"""Holds the slot of a worker on its host."""

GENERATION = "HVD_GENERATION"
"""Holds the generation that a rank is in."""


class ElasticMessage(Struct, frozen=True, tag=True):
    """Base of all elastic messages. MessagePack on the wire; a reader ignores unknown fields."""


# From a worker.


class Ready(ElasticMessage, frozen=True):
    """The worker is in no communicator and waits for its place."""

    generation: int  # the one that it has left; 0 before its first
    failed: bool = False  # that generation failed; False: it was left because the hosts have changed
    reason: str = ""  # cause of the failure as this worker sees it: "RankDied: rank 1 exited"
    step: int = 0  # commits or voted steps that its state has seen; all ranks sync from the newest state
    port: int = 0  # a free port of its host, which it keeps for the rendezvous until it has its place


class Registered(ElasticMessage, frozen=True):
    """The worker has entered ``elastic.run``: it acts on HostsUpdated from here on."""

    resumes: bool = False  # it loads its state from files if no rank has trained, so a job survives losing all ranks


class Leaving(ElasticMessage, frozen=True):
    """The worker received SIGTERM or SIGUSR1 and will exit soon: release its place, and do not replace it."""


class Finished(ElasticMessage, frozen=True):
    """The worker's ``elastic.run`` has returned."""


class Logged(ElasticMessage, frozen=True):
    """The worker has a value for the caller of its function; the driver forwards it without unpickling."""

    value: bytes  # pickled


class Sampled(ElasticMessage, frozen=True):
    """The current activity of a rank, for a panel; also sent in jobs of fixed size."""

    sample: MetricsSample


class Stepped(ElasticMessage, frozen=True):
    """Report of a script's optimizers, for the guard against training apart; only in a job of a fixed size."""

    optimizers: tuple[OptimizerSteps, ...]
    over: bool = False  # the script has ended on this rank


# To a worker.


class Place(ElasticMessage, frozen=True):
    """The worker's place in the next generation, and where its ranks meet."""

    generation: int
    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    hostname: str
    address: str  # of rank 0's host
    port: int
    secret: str
    root: int = 0  # the rank that all others sync from: the oldest worker with the highest step
    fresh: tuple[int, ...] = ()  # ranks that have been in no generation; if there are any, all ranks sync
    before: tuple[int, ...] = ()  # by rank: its rank in the previous generation, -1 if it was not in it


class Removed(ElasticMessage, frozen=True):
    """The worker is no longer part of the job: exit quietly."""

    reason: str = msgspec.field(default="", name="why")


class Lost(ElasticMessage, frozen=True):
    """A worker of the generation has failed: the receiver leaves its communicator and sends Ready."""

    generation: int
    reason: str = msgspec.field(default="", name="why")


class HostsUpdated(ElasticMessage, frozen=True):
    """Hosts were added or removed: rendezvous again at the next commit."""

    time: float  # seconds of the driver's monotonic clock
    change: int  # REMOVED, ADDED, or both


FromWorker = Ready | Registered | Leaving | Finished | Logged | Sampled | Stepped
ToWorker = Place | Removed | Lost | HostsUpdated

_encode = msgspec.msgpack.Encoder().encode
_from_worker = msgspec.msgpack.Decoder[FromWorker](FromWorker)
_to_worker = msgspec.msgpack.Decoder[ToWorker](ToWorker)


def encode(message: FromWorker | ToWorker) -> bytes:
    """Return a message as bytes for the wire.

    >>> to_worker(encode(Removed("the job is smaller")))
    Removed(reason='the job is smaller')
    """
    return _encode(message)


def from_worker(data: bytes) -> FromWorker:
    """Decode a message from a worker.

    Raises
    ------
    msgspec.DecodeError
        If the data is not such a message.
    """
    message: FromWorker = _from_worker.decode(data)
    return message


def to_worker(data: bytes) -> ToWorker:
    """Decode a message from the driver.

    Raises
    ------
    msgspec.DecodeError
        If the data is not such a message.
    """
    message: ToWorker = _to_worker.decode(data)
    return message
