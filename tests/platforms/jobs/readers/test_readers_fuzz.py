"""Any text ends in a JobSpec or in a JobError: random ones, fixtures with something changed, and those made to hurt."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_kernel.jobs import JobError, JobSpec, formats
from hvd_kernel.jobs.documents import MAX_BYTES
from hvd_kernel.jobs.plan import as_json, as_text, plan

DATA = Path(__file__).parents[2] / "data"
COMPONENT = (
    "version: 1.1\nkind: component\ninputs:\n  - {name: lr, value: 0.1}\nrun:\n  kind: mpijob\n  slotsPerWorker: 2\n"
    '  launcher: {container: {command: [mpirun, -np, "2", python, a.py, "{{ lr }}"], env: [{name: A, value: 1}]}}\n'
    "  worker: {replicas: 2, container: {image: i, resources: {limits: {cpu: 500m, nvidia.com/gpu: 1}}}}\n"
)
MORE = (
    COMPONENT,
    "horovodrun -np 8 -H a:4,b:4 --autotune --fusion-threshold-mb 32 python train.py --dir $HOME\n",
    "mpiexec -n 4 -ppn 2 -hosts a,b -genv A 1 python train.py\n",
    "a slots=4\nb:2\n# c\nd\n[::1]:3 user=joe\n",
)
SEEDS = [path.read_text() for path in sorted(DATA.rglob("*")) if path.is_file() and path.suffix != ".json"] + list(MORE)
KINDS = ["", *(reader.kind for reader in formats.READERS)]
FILES = {"hosts": "a slots=2\nb:2\n", "/generated/hostfile": "a\nb\n", "options": "workerCount: 2\n"}
TOKENS = [
    *(
        "...",
        "&a ",
        "*a",
        "<<: ",
        "!!binary ",
        "!!python/object:os.system ",
        "{{ x }}",
        "{{",
        "}}",
        "%YAML 9.9\n",
        "---\n",
    ),
    *("\t", "\0", "\ufeff", "\u2028", "\udcff", "é", "\r", "'", '"', "\\", "\\\n", "\n", " ", "  "),
    *(": ", "- ", "? ", ", ", "[", "]", "{", "}", "| ", "> ", "#", "=", "-", "--", ";", "&&", "$(", "`"),
    *("1e999", "-1", "0", "99999999999", "9" * 5000, "0x10", "1:30", "null", "~", "2001-01-01", "yes", ".inf", ".nan"),
    *(
        "-np ",
        "-H ",
        "--hostfile hosts ",
        "--optionsFile options ",
        "-x ",
        "index: 2",
        "n_workers: 3",
        "run:",
        "train:",
    ),
]


def end(text: str, kind: str) -> None:
    """Read a text; a JobSpec can be planned, and a JobError has a message."""
    try:
        spec = formats.read(text, "file", kind, FILES.get)
    except JobError as wrong:
        said = str(wrong).strip()
    else:
        said = _planned(spec)
    assert said


def _planned(spec: JobSpec) -> str:
    if spec.size > 1000:
        return "too many to look at"
    made = plan(spec)
    assert len(made.tasks) == spec.size
    assert as_json(made)
    return as_text(made)


@st.composite
def changed(draw: st.DrawFn) -> str:
    text = draw(st.sampled_from(SEEDS))
    for _ in range(draw(st.integers(0, 5))):
        how = draw(st.sampled_from(CHANGES))
        text = how(text, draw(st.integers(0, max(0, len(text) - 1))), draw(st.sampled_from(TOKENS)))
    return text


def _without_line(text: str, at: int, _token: str) -> str:
    lines = text.splitlines(keepends=True)
    return "".join(lines[: (number := text.count("\n", 0, at))] + lines[number + 1 :])


def _twice_the_line(text: str, at: int, _token: str) -> str:
    lines = text.splitlines(keepends=True)
    number = text.count("\n", 0, at)
    return "".join(lines[: number + 1] + lines[number:])


def _moved_line(text: str, at: int, _token: str) -> str:
    start = text.rfind("\n", 0, at) + 1
    return text[:start] + "  " + text[start:]


CHANGES = [
    _without_line,
    _twice_the_line,
    _moved_line,
    lambda text, at, token: text[:at] + token + text[at:],
    lambda text, at, token: text[:at] + token + text[at + 1 :],
    lambda text, at, token: text[:at] + token + text[at + len(token) :],
    lambda text, at, _token: text[:at] + text[at + 1 :],
    lambda text, at, _token: text[:at],
    lambda text, at, _token: text[at:],
]


@given(text=st.text(), kind=st.sampled_from(KINDS))
def test_any_text(text: str, kind: str) -> None:
    end(text, kind)


@given(
    words=st.lists(st.sampled_from([*TOKENS, *(word for seed in SEEDS for word in seed.split())])),
    kind=st.sampled_from(KINDS),
)
def test_any_tokens_of_the_formats(words: list[str], kind: str) -> None:
    end(" ".join(words), kind)
    end("\n".join(words), kind)


@given(text=changed(), kind=st.sampled_from(KINDS))
def test_any_change_of_a_file(text: str, kind: str) -> None:
    end(text, kind)
    end(text, "")


def _aliases(levels: int) -> str:
    names = "abcdefghijklmnopqrstuvwxyz"[:levels]
    rows = [f"{name}: &{name} [{','.join(['*' + before] * 9)}]" for before, name in itertools.pairwise(names)]
    return "\n".join(["a: &a [1,1,1,1,1,1,1,1,1]", *rows])


def _filled(part: str, size: int = MAX_BYTES) -> str:
    return (part * (size // len(part) + 1))[:size]


HURTFUL = {
    "a million laughs": _aliases(8),
    "an alias of itself": "train: &a [*a]",
    "deep lists": "[" * 60_000,  # libyaml's composer calls itself for each, and ended the process
    "deep maps": "{a: " * 15_000,
    "deep dashes": "- " * 30_000,
    "deep blocks": "".join(" " * depth + "a:\n" for depth in range(300)),
    "many values": "[" + "1," * 30_000 + "]",
    "many names": "".join(f"k{number}: v\n" for number in range(5_500)),
    "a long number": "train: " + "9" * 60_000,
    "a number of minutes": "train: " + "1:" * 30_000 + "1",
    "a float beyond all": "train: 1" + "0" * 60_000 + ".0e9",
    "a long word": "train: " + "x" * 60_000,
    "empty lines": _filled("\n"),
    "comments": _filled("#\n"),
    "dots": _filled("...\n"),
    "dollars": _filled("$ "),
    "continued lines": _filled("\\\n"),
    "more than allowed": _filled("a: b\n", MAX_BYTES + 1),
    "a quote left open": 'mpirun -np 2 "' + "x" * 60_000,
    "escapes": "mpirun -np 2 " + "\\ " * 20_000,
    "many flags": "mpirun -np 2 " + "-x A=1 " * 8_000 + "python a.py",
    "many hosts": "mpirun -np 2 -H " + ",".join(f"h{number}:2" for number in range(5_000)) + " python a.py",
    "many assignments": "A=1 " * 15_000 + "mpirun python a.py",
    "open templates": "framework: horovod\nrun: {cmd: '" + "{{ " * 20_000 + "'}",
    "a wide template": "framework: horovod\nrun: {cmd: '{{" + " " * 60_000 + "'}",
    "many workers": "framework: horovod\nenvironment: {replicas: {n_workers: 10000}}\nrun: {cmd: a}",
    "too many workers": "framework: horovod\nenvironment: {replicas: {n_workers: 99999999999}}",
    "many slots": "train:\n  tensorflow: {horovod: {workers: {count: 10000, processes: 10000}}}\n  run: a\n",
    "many brackets": "#!/bin/sh\n#BSUB -n 4\n#BSUB -R " + "span[" * 10_000 + "\nhvdrun python a.py\n",
    "deep JSON": "gradient experiments create multinode --experimentEnv " + "[" * 50_000,
}
WORST = ("a million laughs", "an alias of itself", "deep lists", "deep maps", "a number of minutes", "a wide template")


@pytest.mark.parametrize("title", WORST)
def test_hostile_texts(title: str) -> None:
    for kind in ("", "polyaxonfile", "riseml"):
        end(HURTFUL[title], kind)


def _cpu_s(text: str, kind: str) -> float:
    """Return the CPU time of one reading, which other processes do not affect."""
    before = time.process_time()
    end(text, kind)
    return time.process_time() - before


@pytest.mark.nightly
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("title", HURTFUL)
def test_hostile_texts_are_parsed_as_fast_as_others(title: str, kind: str) -> None:
    assert _cpu_s(HURTFUL[title], kind) < 0.5
