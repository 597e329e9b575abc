"""The table of calls (table.py) on every frontend (adapters.py): exact results on every rank, and errors by class and words.

A test is one subject of the table and one flavour of a framework; it reports each row that differs, by name and rank.
"""

from __future__ import annotations

import pytest
from frameworks.conformance.check import SCENES, TRAININGS, conforms
from frameworks.conformance.table import SUBJECTS
from hvdtest.launch import RankPool
from hvdtest.pools import layouts

pytestmark = pytest.mark.mp

layout = layouts((2, "shm"), (3, "tcp"), nightly=((1, "auto"), (2, "tcp"), (3, "shm"), (4, "shm"), (4, "tcp")))
every = [*SUBJECTS, *SCENES, TRAININGS]
each_subject = pytest.mark.parametrize("subject", every)


@each_subject
@pytest.mark.parametrize("framework", ["core", "numpy", "torch", "torch, async"])
def test_host(ranks: RankPool, framework: str, subject: str) -> None:
    conforms(ranks, framework, subject)


@pytest.mark.nightly
@each_subject
def test_tensorflow(tf_ranks: RankPool, subject: str) -> None:
    conforms(tf_ranks, "tensorflow", subject)


@pytest.mark.nightly
@each_subject
@pytest.mark.parametrize("framework", ["jax", "jax, jit"])
def test_jax(jax_ranks: RankPool, framework: str, subject: str) -> None:
    conforms(jax_ranks, framework, subject)


@pytest.mark.nightly
@each_subject
@pytest.mark.parametrize("framework", ["mxnet", "mxnet, numpy"])
def test_mxnet(mx_ranks: RankPool, framework: str, subject: str) -> None:
    conforms(mx_ranks, framework, subject)


@pytest.mark.nightly
@pytest.mark.parametrize("subject", [subject for subject in every if subject != "uneven batches"])  # Keras has no join
def test_keras(keras_ranks: RankPool, subject: str) -> None:
    conforms(keras_ranks, "keras", subject)
