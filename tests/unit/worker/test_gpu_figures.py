"""The figures of a rank's GPU, from a fake NVML: units, rates, devices that lack some, and ranks without any."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from hvdtest.fake_nvml import FakeDevice, fake_nvml

from hvd_kernel.errors import NotInitialized
from hvd_kernel.frameworks import registry
from hvd_kernel.worker import gpu_figures

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    registry.import_adapters()
    gpu_figures._meter_of.cache_clear()
    yield
    gpu_figures._meter_of.cache_clear()


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch) -> list[FakeDevice]:
    """Two devices that torch has initialised; the rank is the second of its host."""
    made = [FakeDevice(util=1), FakeDevice()]
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml({"GPU-aa": made[0], "GPU-bb": made[1]}))
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    uuids = ["aa", "bb"]
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(uuid=uuids[index]))
    monkeypatch.setattr(gpu_figures.session, "local_rank", lambda: 1)
    return made


def clock(monkeypatch: pytest.MonkeyPatch, *moments: float) -> None:
    ticks = iter(moments)
    monkeypatch.setattr(gpu_figures, "time", SimpleNamespace(monotonic=lambda: next(ticks)))  # no other thread's


def test_figures_are_in_plain_units_and_of_the_ranks_own_device(
    devices: list[FakeDevice], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock(monkeypatch, 100.0, 100.5)
    first = {"util": 71.0, "memory": 2e9, "power": 412.5, "temperature": 68.0, "pcie_tx": 1.2e9, "pcie_rx": 3.4e9}
    assert gpu_figures.sample() == first, "a rate of NVLink needs two looks"
    devices[1].nvlink_tx_kib, devices[1].nvlink_rx_kib = 5 << 20, 1 << 20
    assert gpu_figures.sample() == first | {"nvlink_tx": float(10 << 30), "nvlink_rx": float(2 << 30)}
    assert devices[0].asked == []


def test_restarted_counter_gives_no_rate(devices: list[FakeDevice], monkeypatch: pytest.MonkeyPatch) -> None:
    clock(monkeypatch, 1.0, 2.0, 3.0)
    devices[1].nvlink_tx_kib = 100
    assert "nvlink_tx" not in gpu_figures.sample()
    devices[1].nvlink_tx_kib = 3
    assert "nvlink_tx" not in gpu_figures.sample()
    devices[1].nvlink_tx_kib = 5
    assert gpu_figures.sample()["nvlink_tx"] == 2048.0


def test_pcie_is_polled_once_a_second(devices: list[FakeDevice], monkeypatch: pytest.MonkeyPatch) -> None:
    clock(monkeypatch, *(10 + 0.2 * i for i in range(6)))
    found = [gpu_figures.sample()["pcie_rx"] for _ in range(5)]
    devices[1].pcie_kb = (0, 7)
    assert (found, gpu_figures.sample()["pcie_rx"]) == ([3.4e9] * 5, 7000.0)
    assert devices[1].asked.count("pcie_kb") == 4, "two directions, twice"
    assert devices[1].asked.count("util") == 6


@pytest.mark.parametrize(
    ("lacks", "names"),
    [
        ("util", {"util"}),
        ("used", {"memory"}),
        ("milliwatts", {"power"}),
        ("celsius", {"temperature"}),
        ("nvlink_rx_kib", {"nvlink_tx", "nvlink_rx"}),
        ("pcie_kb", {"pcie_tx", "pcie_rx"}),
    ],
)
def test_figures_missing_on_a_device_are_omitted(
    lacks: str, names: set[str], devices: list[FakeDevice], monkeypatch: pytest.MonkeyPatch
) -> None:
    everything = {"util", "memory", "power", "temperature", "nvlink_tx", "nvlink_rx", "pcie_tx", "pcie_rx"}
    clock(monkeypatch, 1.0, 2.0)
    setattr(devices[1], lacks, None)
    gpu_figures.sample()
    assert set(gpu_figures.sample()) == everything - names


@pytest.mark.usefixtures("devices")
def test_a_rank_that_has_used_no_device_does_not_start_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    def touched(*_: Any) -> Any:
        raise AssertionError("this starts CUDA")

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(torch.cuda, "get_device_properties", touched)
    assert gpu_figures.sample() == {}
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(uuid="bb"))
    assert gpu_figures.sample()["power"] == 412.5, "it is asked again once the rank has used one"


@pytest.mark.usefixtures("devices")
def test_first_device_is_used_between_two_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody() -> int:
        raise NotInitialized

    monkeypatch.setattr(gpu_figures.session, "local_rank", nobody)
    assert gpu_figures.sample()["util"] == 1.0


@pytest.mark.usefixtures("devices")
@pytest.mark.parametrize("trouble", ["no module", "no driver", "unknown device"])
def test_without_nvml_there_are_no_figures_and_no_error(trouble: str, monkeypatch: pytest.MonkeyPatch) -> None:
    nvml: Any = fake_nvml({})
    if trouble == "no driver":
        nvml.nvmlInit = lambda: nvml.nvmlDeviceGetHandleByUUID("none")
    monkeypatch.setitem(sys.modules, "pynvml", None if trouble == "no module" else nvml)
    assert gpu_figures.sample() == {}
