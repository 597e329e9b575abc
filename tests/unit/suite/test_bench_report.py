"""The arithmetic of the benchmark's report, and its command line."""

from __future__ import annotations

import pytest

from hvd_kernel.bench.__main__ import main
from hvd_kernel.bench.report import Result, as_json, busbw, nbytes_of, results, table


def test_busbw_is_what_each_link_carries() -> None:
    assert busbw(1000, 0.5, 1) == 0
    assert busbw(1000, 0.5, 2) == 2000
    assert busbw(1000, 0.5, 4) == 3000
    assert busbw(1000, 0.5, 8) == pytest.approx(3500)


def test_results_are_medians_and_ratios_are_taken_round_by_round() -> None:
    samples = {"hvd_kernel": [1.0, 2.0, 4.0], "other": [3.0, 2.0, 40.0]}
    ours, other = results(8, samples, {"other"}, 2)
    assert ours == Result("hvd_kernel", 8, 2.0, 4.0, 4.0, 1.0, right=True)
    assert other == Result("other", 8, 3.0, 8 / 3, 8 / 3, 3.0, right=False)  # 3, 1 and 10 times ours


def test_the_table_marks_wrong_values_and_chooses_units() -> None:
    found = results(1 << 20, {"hvd_kernel": [0.001], "bad": [2.5e-06], "slow": [3.0]}, {"bad"}, 2)
    head, ours, bad, slow = table(found).splitlines()
    assert head.split() == ["bytes", "contender", "time", "algbw", "GB/s", "busbw", "GB/s", "time", "/", "ours"]
    assert ours.split() == ["1048576", "hvd_kernel", "1.000", "ms", "1.049", "1.049", "1.00"]
    assert bad.split() == ["1048576", "bad", "2.50", "us!", "419.430", "419.430", "0.00"]
    assert slow.split()[2:4] == ["3.000", "s"]
    assert as_json(found)[1]["right"] is False


def test_sizes() -> None:
    assert [nbytes_of(text) for text in ("4096", "64K", "16m", "1G")] == [4096, 65536, 16 << 20, 1 << 30]
    for wrong in ("", "K", "0", "-1", "1.5M", "64KB"):
        with pytest.raises(ValueError, match="is not a size"):
            nbytes_of(wrong)


@pytest.mark.parametrize("arguments", [["--sizes", "4X"], ["-np", "0"], ["--dtype", "complex64"], ["--op", "mean"]])
def test_wrong_arguments_are_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert arguments[0] in capsys.readouterr().err
