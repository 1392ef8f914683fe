"""A device that the driver has and ONNX Runtime does not list is named with both lists and a remedy."""

from pathlib import Path

import pytest
from enginewright_contract.reasons import Reason
from enginewright_runtime.core import nvml
from enginewright_runtime.session.device_discovery import find_lack

from tests.support.optional import present

PROVIDER = "NvTensorRTRTXExecutionProvider"
NVIDIA, CONSOLE = "0x10de", "0x1a03"


@pytest.fixture(autouse=True)
def _driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "device_names", lambda _: ["NVIDIA A10G"])


def put_card(root: Path, name: str, vendor: str | None) -> None:
    folder = root / "class/drm" / name / "device"
    folder.mkdir(parents=True)
    if vendor:
        (folder / "vendor").write_text(f"{vendor}\n")


def put_function(root: Path, name: str, vendor: str, kind: str = "0x030200") -> None:
    folder = root / "bus/pci/devices" / name
    folder.mkdir(parents=True)
    (folder / "vendor").write_text(f"{vendor}\n")
    (folder / "class").write_text(f"{kind}\n")


# fault: Devices | ONNX Runtime does not list a device that the driver has: no nvidia-drm, or a masked /sys | the session:
#   `ProviderRefused` with what both list, and the remedy | before a model is loaded
def test_a_device_that_only_the_driver_lists_has_a_remedy(tmp_path: Path) -> None:
    put_card(tmp_path, "card0", CONSOLE)
    put_card(tmp_path, "card0-VGA-1", CONSOLE)
    put_function(tmp_path, "0000:00:1e.0", NVIDIA)
    failure = present(find_lack(PROVIDER, tmp_path))
    assert failure.reason is Reason.PROVIDER_REFUSED
    assert "although the driver reports NVIDIA A10G" in failure.cause
    assert "/sys/class/drm, which has card0 (0x1a03), and" in failure.cause
    assert "/sys/bus/pci/devices, which has 0000:00:1e.0 (0x10de)" in failure.cause
    assert "modprobe nvidia-drm" in failure.message


@pytest.mark.parametrize("vendor", [None, NVIDIA])
def test_a_device_that_is_listed_is_refused_for_another_reason(
    vendor: str | None, tmp_path: Path
) -> None:
    """Of a card without a vendor nothing is known: then the second folder counts."""
    put_card(tmp_path, "card0", vendor)
    put_function(tmp_path, "0000:00:1e.0", NVIDIA)
    failure = present(find_lack(PROVIDER, tmp_path))
    assert "modprobe" not in failure.message
    assert f"card0 ({vendor or 'no vendor'})" in failure.cause


def test_a_masked_folder_lists_nothing(tmp_path: Path) -> None:
    put_function(tmp_path, "0000:00:03.0", NVIDIA, kind="0x020000")  # a network adapter's
    failure = present(find_lack(PROVIDER, tmp_path))
    assert "/sys/class/drm, which has no GPU, and in /sys/bus/pci/devices, which has no GPU" in (
        failure.cause
    )
    assert "modprobe nvidia-drm" in failure.message


def test_without_a_driver_nothing_is_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvml, "device_names", lambda _: [])
    assert find_lack(PROVIDER, tmp_path) is None
