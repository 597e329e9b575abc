"""Plugins of frameworks are loaded once, also while telemetry reads their figures."""

from __future__ import annotations

import pytest
from hvdtest.environments import environment, output_of

pytestmark = [pytest.mark.nightly, pytest.mark.mp]

ASKED = """
import threading
from hvd_kernel.core import metrics
plain, asked, loaded = metrics.count_by, [], []

def count_by(counter):
    plain(counter)
    if not asked:  # as telemetry may, before the call that registers the counter has returned
        asked.append(counter)
        metrics.snapshot()

def counted(load):
    return lambda *args: loaded.append(args) or load(*args)

metrics.count_by = count_by
"""
JAX = """
from hvd_kernel.frameworks import plugin
plugin.load = counted(plugin.load)
import hvd_kernel.jax
print(len(loaded), [each.name for each in threading.enumerate()].count("hvd-blocked"))
"""
TENSORFLOW = """
import tensorflow as tf
tf.load_op_library = counted(tf.load_op_library)
import hvd_kernel.tensorflow
print(len(loaded))
"""


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("name", "script", "count"), [("jaxnew", JAX, "1 1"), ("tf221", TENSORFLOW, "1")])
def test_a_plugin_is_loaded_once_if_counters_are_read_meanwhile(name: str, script: str, count: str) -> None:
    """The panel showed 120 steps instead of 60, and two threads reported the same deadlock."""
    assert output_of(environment(name), ASKED + script) == f"{count}\n"
