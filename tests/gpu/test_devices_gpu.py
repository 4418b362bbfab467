"""The area `devices` on a machine with NVIDIA devices: that the binding has the names and meanings that we use."""

from __future__ import annotations

from pathlib import Path

import pytest

from unhang.check.areas import CheckOptions
from unhang.check.checking import check
from unhang.check.devices import devices

pynvml = pytest.importorskip("pynvml", reason="needs nvidia-ml-py")
pytestmark = pytest.mark.skipif(not Path("/dev/nvidiactl").exists(), reason="needs a device of NVIDIA")


def is_wanted(index: int, count: int) -> bool:
    """Every device. A child process makes the calls, and gets this by its name."""
    return True


def test_what_nvml_tells_is_plausible() -> None:
    found = devices(is_wanted)
    assert "problem" not in found.driver
    assert found.driver["count"] == len(found.devices) > 0
    for device in found.devices:
        assert str(device["uuid"]).startswith("GPU-")
        assert Path("/sys/bus/pci/devices", str(device["bus"])).exists()
        assert isinstance(device["memory_bytes"], int)
        assert isinstance(device["used_bytes"], int)
        assert 0 <= device["used_bytes"] <= device["memory_bytes"]
        assert isinstance(device["temperature_c"], int)
        assert 0 < device["temperature_c"] < 110
        assert device["pcie_width"] in (1, 2, 4, 8, 16, 32)
        assert device["slowdowns"] is not None
        assert device["compute_mode"] in ("default", "prohibited", "exclusive process")


def test_all_rules_can_judge_the_devices_that_are_here() -> None:
    checked = check(CheckOptions(areas=("devices",)), {}, lambda text: None)
    assert checked.diagnosis is not None
    verdicts = {o.rule: (o.verdict, o.reason) for o in checked.diagnosis.outcomes}
    for rule in ("device-unhealthy", "device-slowed", "fabric-not-ready", "device-occupied", "too-few-devices"):
        assert verdicts[rule][0] in ("pass", "fail"), verdicts[rule]
