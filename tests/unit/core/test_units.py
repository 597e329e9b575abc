"""Numbers and units as the table has them; tests/unit/js/units.test.mjs holds the browser's to the same table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hvd_kernel.formatting import units

TABLE = json.loads((Path(__file__).parents[1] / "js" / "units.json").read_text())
UNITS = {
    "number": units.number,
    "metric": units.metric,
    "percent": units.percent,
    "multiple": units.multiple,
    "size": units.decimal_size,
    "rate": units.rate_of,
    "duration": units.duration,
}


@pytest.mark.parametrize("name", sorted({*TABLE, *UNITS}))
def test_a_unit_says_what_the_table_has(name: str) -> None:
    said = [[*row[:-1], UNITS[name](*row[:-1])] for row in TABLE[name]]
    assert said == TABLE[name]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_what_is_no_number_is_a_dash(value: float) -> None:
    """JSON has no such number, so the browser gets none."""
    assert units.number(value) == units.NONE
