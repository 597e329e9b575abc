"""Rules of wording, class names and commit subjects: what each rule finds, and what it accepts."""

from __future__ import annotations

import pytest
from suite.style import LONGEST_SUBJECT, hits, shared_classes, wrong_classes, wrong_subjects


@pytest.mark.parametrize(
    ("file", "source", "rules"),
    [
        ("hvd_kernel/a.py", '"""Have the ranks started."""\n', ["first word"]),
        ("hvd_kernel/a.py", '"""Start the ranks that are told."""\n', ["told"]),
        ("hvd_kernel/a.py", "each = 1  # of whoever asks\n", ["local name", "person"]),
        (
            "hvd_kernel/a.py",
            "def tell(found):\n    return 'nobody is there'\n",
            ["function name", "local name", "person"],
        ),
        ("hvd_kernel/a.py", "message = 'nobody is there'  # style: ok\n", []),
        ("native/a.cc", "int who;  // from here on\nint nobody;\n", ["from on"]),
        ("docs/a.md", "Nobody knows.\n```\nnobody\n```\n| nobody |\n", ["person"]),
        ("docs/a.md", "word " * 40 + "word.\n", ["long sentence"]),
        ("docs/a.md", "word " * 30 + "word. " + "word " * 30 + "word.\n", []),
        ("tests/unit/test_a.py", f"def test_{'a' * 55}() -> None:\n    each = nobody\n", []),
        ("tests/unit/test_a.py", f"def test_{'a' * 56}() -> None:\n    each = nobody\n", ["test name"]),
    ],
)
def test_rule_finds(file: str, source: str, rules: list[str]) -> None:
    assert sorted(name for name, _ in hits(file, source)) == sorted(rules)


@pytest.mark.parametrize(
    ("first", "second", "shared"),
    [
        ("class Job: ...", "class Job: ...", {"Job": ["one.py", "two.py"]}),
        ("class Job: ...", "class Task:\n    class Job: ...", {}),
        ("class _Job: ...", "class _Job: ...", {}),
        ("class Job: ...\nclass Task: ...", "Job = int", {}),
    ],
)
def test_class_name_of_two_files(first: str, second: str, shared: dict[str, list[str]]) -> None:
    sources = {"one.py": first, "two.py": second}
    assert shared_classes(sources) == shared
    assert [line.split()[1] for line in wrong_classes(sources) if line.startswith("class ")] == list(shared)


@pytest.mark.parametrize(
    "subject",
    [
        "cluster: retry registration after a lost hub",
        "tensorflow, keras: share a smoke test",
        "x: " + "a" * (LONGEST_SUBJECT - 3),
    ],
)
def test_subject_is_accepted(subject: str) -> None:
    assert wrong_subjects([subject]) == []


@pytest.mark.parametrize(
    ("subject", "reason"),
    [
        ("What /proc tells of a process is said once", "is not 'room: what changes'"),
        ("Cluster: retry", "is not 'room: what changes'"),
        ("cluster: retry.", "is not 'room: what changes'"),
        ("cluster:", "is not 'room: what changes'"),
        ("x: " + "a" * (LONGEST_SUBJECT - 2), f"has {LONGEST_SUBJECT + 1} characters, more than {LONGEST_SUBJECT}"),
        ("docs: The figures of today", "does not begin with a verb, as in 'native: form a torus of many hosts'"),
        (
            "native: one limit for eager rounds",
            "does not begin with a verb, as in 'native: form a torus of many hosts'",
        ),
    ],
)
def test_subject_is_refused(subject: str, reason: str) -> None:
    assert wrong_subjects(["base: mend", subject]) == [f"{subject!r} {reason}"]
