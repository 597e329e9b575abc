"""YAML documents: what is refused before a model sees it, with its place."""

from __future__ import annotations

import pytest

from hvd_kernel.jobs import JobError, documents, formats


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        # libyaml's composer calls itself for each bracket: such a file ended the process.
        ("a: 1\nb: " + "[" * 60_000, "f:2:53: here are more than 50 levels, or 5000 values."),
        ("[" + "1,\n" * 20_000, "f:9999:1: here are more than 50 levels, or 5000 values."),
        ("a: &a [*a]\n", "f:1:1: more than 5000 values, or 50 levels: aliases multiply them."),
        ("a: 1\nb: 2\na: 3\n", "f:1:4: a: appears twice, in lines 1 and 3."),
        ("a: 1\nb: " + "1:" * 300 + "1\n", "f:2:4: b: '1:1:1:1:1:1"),  # a number of minutes, says YAML
        ("a: [1\nb: 2\n", "f:2:2: this is not YAML: did not find expected ',' or ']'."),
        ("a: \udcff\n", "f:1:1: this is not YAML: "),
        ("", "f:1:1: the file is empty."),
        ("x" * 70_000, "f:1:1: the file has 70000 characters; 65536 are allowed."),
    ],
    ids=["deep", "many", "endless", "twice", "long number", "open", "no Unicode", "empty", "large"],
)
def test_a_file_that_cannot_be_used_is_refused_with_its_place(text: str, wanted: str) -> None:
    with pytest.raises(JobError) as error:
        documents.parse(text, "f")
    assert str(error.value).startswith(wanted)


def test_bytes_that_are_no_text_are_named_by_their_place() -> None:
    with pytest.raises(JobError) as error:
        formats.read("mpirun -np 2 python \udcff.py", "the command line")
    assert str(error.value) == "the command line: character 21 is not Unicode: write it in UTF-8."
