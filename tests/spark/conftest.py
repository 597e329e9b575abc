"""Shared by the tests of drivers of Spark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hvdtest.spark_driver import outcomes


@pytest.fixture(scope="module")
def results(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    """Run a test file's ``SCRIPT`` once, with its ``HOW``; return the results of the cases."""
    how = getattr(request.module, "HOW", {})
    return outcomes(request.module.SCRIPT, tmp_path_factory.mktemp("driver"), **how)
