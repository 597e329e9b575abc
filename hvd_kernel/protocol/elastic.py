"""Elastic messages between a rank and the driver of its job: where is my place, the hosts have changed, I leave.

A rank is connected with the agent of its host (processes/rank_channel.py), which passes these on as they are.

    worker                              driver
    Ready(generation 0)           ->              at its first init, and at each one after
                                  <-  Place       when all workers of the new generation are ready
    Registered                    ->              it has entered elastic.run: it can act on changes
                                  <-  HostsUpdated
                                  <-  Lost        a worker has failed, and this one has not noticed
    Ready(generation, why)        ->              it has left its communicator, because of a failure or a change
                                  <-  Place | Removed

Terms.
  worker      one process for its whole life, by a number that no other process of the job ever has
  rank        the number of a worker in one generation
  generation  one communicator of the job: it begins when all its workers have been told their places; from 1
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from hvd_kernel.protocol.messages import OptimizerSteps

REMOVED, ADDED = 1, 2
"""What has changed of the hosts, as ``hvd.elastic.HostUpdateResult`` has it: numbers that are or-ed together."""

VARIABLE = "HVD_ELASTIC_DRIVER"
"""Set to 1 in a rank whose places a driver gives: ``init`` asks for one."""

WORKER = "HVD_WORKER"
"""Tells a worker its number."""

SLOT = "HVD_SLOT"
"""Tells a worker its slot on its host."""

GENERATION = "HVD_GENERATION"
"""Tells a rank the generation that it is in."""


class ElasticMessage(Struct, frozen=True, tag=True):
    """Base of all messages. MessagePack on the wire; fields unknown to a reader are ignored."""


# From a worker.


class Ready(ElasticMessage, frozen=True):
    """The worker is in no communicator and waits for its place."""

    generation: int  # the one that it has left; 0: it has been in none
    failed: bool = False  # that one has failed; False: it was left because the hosts have changed
    reason: str = ""  # why it has failed, as this worker knows it: "RankDied: rank 1 exited"
    step: int = 0  # how many commits or voted steps its state has seen; the newest state is synced from
    port: int = 0  # a free port of its host, which it keeps for the rendezvous until it has its place


class Registered(ElasticMessage, frozen=True):
    """The worker has entered ``elastic.run``: it acts on HostsUpdated from here on."""

    resumes: bool = False  # its state begins from files where no rank has trained: a job that has lost all goes on


class Leaving(ElasticMessage, frozen=True):
    """The worker was asked from outside (SIGTERM, SIGUSR1) to end soon: give its place up, and do not replace it."""


class Finished(ElasticMessage, frozen=True):
    """The worker's ``elastic.run`` has returned."""


class Logged(ElasticMessage, frozen=True):
    """The worker has a value for whoever called its function; the driver does not look at it."""

    value: bytes  # pickled


class Sampled(ElasticMessage, frozen=True):
    """What a rank is doing now, for a panel; also of a job whose size does not change."""

    sample: dict[str, Any]  # a MetricsSample of protocol/messages.py (``to_wire``)


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
    root: int = 0  # the rank whose state the others take: of those with the highest step the oldest
    fresh: tuple[int, ...] = ()  # ranks that have been in no generation: where there are any, all ranks sync
    before: tuple[int, ...] = ()  # of each rank its rank in the generation before, -1: it was not in it


class Removed(ElasticMessage, frozen=True):
    """The worker is not part of the job any more: end quietly."""

    why: str = ""


class Lost(ElasticMessage, frozen=True):
    """A worker of the generation has failed: who still waits to meet it, or has not noticed, leaves and is Ready."""

    generation: int
    why: str = ""


class HostsUpdated(ElasticMessage, frozen=True):
    """Hosts have come or gone: meet again at the next commit."""

    time: float  # seconds of the driver's monotonic clock
    change: int  # REMOVED, ADDED, or both


FromWorker = Ready | Registered | Leaving | Finished | Logged | Sampled | Stepped
ToWorker = Place | Removed | Lost | HostsUpdated

_encode = msgspec.msgpack.Encoder().encode
_from_worker = msgspec.msgpack.Decoder[FromWorker](FromWorker)
_to_worker = msgspec.msgpack.Decoder[ToWorker](ToWorker)


def encode(message: FromWorker | ToWorker) -> bytes:
    """Return a message as it goes over the wire.

    >>> to_worker(encode(Removed("the job is smaller")))
    Removed(why='the job is smaller')
    """
    return _encode(message)


def from_worker(data: bytes) -> FromWorker:
    """Read what a worker says.

    Raises
    ------
    msgspec.DecodeError
        It is no such message.
    """
    message: FromWorker = _from_worker.decode(data)
    return message


def to_worker(data: bytes) -> ToWorker:
    """Read what the driver says.

    Raises
    ------
    msgspec.DecodeError
        It is no such message.
    """
    message: ToWorker = _to_worker.decode(data)
    return message
