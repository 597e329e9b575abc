"""Writers and readers are inverse: a written job, as far as the platform can express it, is read as the same job."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_kernel.jobs import Bounds, JobSpec, RendezvousAddress, Replica, Resources, Variable, formats, writers
from hvd_kernel.jobs.writers import WriterOptions

SCRIPTS = {"slurm", "lsf"}
KINDS = [kind for kind in writers.WRITERS if kind != "kustomize"]  # it has the objects of "job", and a policy
MEETINGS = {"job": "{0}-0.{0}", "swarm": "tasks.{0}"}
TAKEN = {"HVD_SECRET_KEY", "HOROVOD_SECRET_KEY"}

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=30)
SHELL = st.text("ab '\"\\$`(){}|;&<>#!*?~=%[]\n\t-", max_size=30)
PLAIN = st.from_regex(r"python [a-z]{1,5}\.py( --[a-z]{1,4} [0-9a-z.]{1,3}){0,2}", fullmatch=True)
LINES = ("...", "---", "-np 3 x", "sh -c 'a b'", "hvdrun x", "exec y", "cd /x", "set -e", "srun z", "export A=1", "''")
VALUES = ("$(HOME)", "$$(A)", "{{x}}", "y", "1e3", "null", "012", " x ", "a  b", "", "\n a", "a \n", "x\\\ny")
WITHIN = ("#SBATCH -N9", "echo '\n#BSUB -n 9\n'", "a\n...\nb", "a\n---\nb", "cat <<E\n x\nE")
TRAPS = st.sampled_from([*LINES, *VALUES, *WITHIN])
WRITTEN = st.one_of(PLAIN, TRAPS, SHELL, TEXT)


def printable(text: str) -> bool:
    return all(c in "\n\t" or c.isprintable() for c in text)


@st.composite
def jobs(draw: st.DrawFn, kind: str) -> JobSpec:
    """Return a job that a kind can express completely."""
    script = kind in SCRIPTS
    texts = WRITTEN.filter(printable) if script else WRITTEN
    line = texts.filter(lambda text: "\n" not in text and text.strip() == text and len(text.splitlines()) < 2)
    name = draw(line if script else st.from_regex(r"[a-z]([-a-z0-9]{0,20}[a-z0-9])?", fullmatch=True))
    replicas = draw(components(kind) if kind == "slurm" else alike(kind))
    slots = sum(replica.slots for replica in replicas)
    fewest = slots - replicas[-1].slots + 1
    uniform = len({(replica.slots, replica.resources) for replica in replicas}) == 1
    np = draw(st.integers(fewest, slots)) if uniform and kind not in MEETINGS else 0
    names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True).filter(lambda each: each not in TAKEN)
    values = st.none() | texts if script else texts
    interfaces = st.lists(st.sampled_from(["eth0", "ib0", "enp3s0.7"]), max_size=2, unique=True)
    return JobSpec(
        kind,
        replicas,
        steps=tuple(draw(st.lists(texts, min_size=1, max_size=3))),
        np=0 if np == slots else np,
        environment=tuple(Variable(*each) for each in draw(st.dictionaries(names, values, max_size=3)).items()),
        name=name,
        image="" if script else draw(st.sampled_from(["a:1", "reg.example/a/b@sha256:00", "y"])),
        workdir=draw(st.sampled_from(["", "/w", "/it's here", "/a b$c", "~"])),
        rendezvous=RendezvousAddress(MEETINGS[kind].format(name), draw(st.integers(1, 65535)))
        if kind in MEETINGS
        else None,
        interfaces=() if kind == "slurm" else tuple(draw(interfaces)),
    )


@st.composite
def alike(draw: st.DrawFn, kind: str) -> tuple[Replica, ...]:
    slots, count = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    resources = draw(batch(slots, kind) if kind in SCRIPTS else pods())
    leads = kind == "mpijob" and draw(st.booleans())
    first = [Replica("launcher", 0, slots=slots, resources=draw(pods()))] if leads else []
    return (*first, *(Replica("worker", index, slots=slots, resources=resources) for index in range(count)))


@st.composite
def components(draw: st.DrawFn, kind: str) -> tuple[Replica, ...]:
    """Return differing replicas; all have the same kinds of resources, as a heterogeneous job requires."""
    cpu, memory, gpus = draw(st.tuples(st.booleans(), st.booleans(), st.booleans()))
    found: list[Replica] = []
    for _ in range(draw(st.integers(1, 3))):
        slots = draw(st.integers(1, 3))
        said = draw(batch(slots, kind))
        each = Resources(
            said.cpu if cpu and said.cpu.limit else Bounds(slots, slots) if cpu else Bounds(),
            said.memory_bytes if memory and said.memory_bytes.limit else Bounds(2**30, 2**30) if memory else Bounds(),
            (said.gpus or 0) if gpus else None,
        )
        for _ in range(draw(st.integers(1, 2))):
            found.append(Replica("worker", len(found), slots=slots, resources=each))
    return tuple(found)


@st.composite
def batch(draw: st.DrawFn, slots: int, kind: str) -> Resources:
    """Return whole cores per rank, whole mebibytes; Slurm has one number for request and limit of memory."""
    cores = draw(st.none() | st.integers(1, 8).map(lambda each: each * slots))
    low, high = sorted(draw(st.tuples(st.integers(1, 4096), st.integers(1, 4096))))
    memory = draw(
        st.sampled_from(
            [(None, None), (high, high), *([(low, high), (low, None), (None, high)] if kind == "lsf" else [])]
        )
    )
    gpus = draw(st.none() | st.integers(1 if kind == "lsf" else 0, 8))
    return Resources(Bounds(cores, cores), Bounds(*(None if each is None else each * 2**20 for each in memory)), gpus)


@st.composite
def pods(draw: st.DrawFn) -> Resources:
    cpu = draw(bounds(st.integers(0, 64_000).map(lambda each: each / 1000)))
    return Resources(cpu, draw(bounds(st.integers(0, 2**44))), draw(st.none() | st.integers(0, 8)))


@st.composite
def bounds(draw: st.DrawFn, number: st.SearchStrategy[float]) -> Bounds:
    low, high = sorted(draw(st.tuples(number, number)))
    return Bounds(draw(st.sampled_from([None, low])), draw(st.sampled_from([None, high])))


@pytest.mark.parametrize("kind", KINDS)
@given(st.data())
def test_written_job_is_read_as_the_same_job(kind: str, data: st.DataObject) -> None:
    spec = data.draw(jobs(kind))
    port = spec.rendezvous.port if spec.rendezvous else 0
    text = writers.write(msgspec.structs.replace(spec, kind="riseml", rendezvous=None), kind, WriterOptions(port=port))
    assert formats.read(text, "job", kind) == spec
    assert formats.read(text, "job") == spec, "and told from the text alone"
    assert writers.write(spec, kind) == text
