"""Where ONNX Runtime looks for the devices of plug-ins, which may show none although the driver has one.

It lists GPUs by /sys/class/drm, and only where that has none by /sys/bus/pci/devices (Linux), with the vendor
in a file of each. On a node without the kernel module nvidia-drm, in some virtual machines, and in sandboxes
that mask /sys, a device is missing there that CUDA and NVML use through the driver.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from enginewright_contract.reasons import Reason

from enginewright_runtime.core import nvml
from enginewright_runtime.core.failure import StageFailure

_SYSFS: Final = Path("/sys")
_CARDS: Final = "class/drm"
_PCI: Final = "bus/pci/devices"
_CARD: Final = re.compile(r"card\d+")
_DISPLAY: Final = "0x03"  # class of display controllers, which GPUs without displays have too
_NVIDIA: Final = "0x10de"
_NAMED: Final = 8


def find_lack(
    provider: str, root: Path = _SYSFS, library: str = nvml.LIBRARY
) -> StageFailure | None:
    """Return the failure of a plug-in's provider that gets no device from ONNX Runtime, if the driver has one."""
    devices = nvml.device_names(library)
    if not devices:
        return None
    cards, functions = (dict(list_(root)) for list_ in (_list_cards, _list_pci))
    cause = (
        f"{provider} found no supported device, although the driver reports {_join(devices)}:"
        f" ONNX Runtime looks in /sys/{_CARDS}, which has {_describe(cards)}, and in /sys/{_PCI},"
        f" which has {_describe(functions)}"
    )
    listed = set(filter(None, cards.values())) or {*functions.values()}
    if _NVIDIA in listed:
        return StageFailure(Reason.PROVIDER_REFUSED, cause)
    return StageFailure(
        Reason.PROVIDER_REFUSED,
        cause,
        remedy="load the kernel module nvidia-drm on the node (modprobe nvidia-drm), so that NVIDIA's device"
        f" (vendor {_NVIDIA}) is in /sys/{_CARDS}, and hide neither folder from the pod; or choose another"
        " backend in spec.backends",
    )


def _list_cards(root: Path) -> Iterator[tuple[str, str]]:
    for path in _entries(root / _CARDS):
        if _CARD.fullmatch(path.name):
            yield path.name, _read(path / "device/vendor")


def _list_pci(root: Path) -> Iterator[tuple[str, str]]:
    for path in _entries(root / _PCI):
        if _read(path / "class").startswith(_DISPLAY):
            yield path.name, _read(path / "vendor")


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _read(file: Path) -> str:
    """Return the text of a small file, empty if it cannot be read."""
    try:
        return file.read_text().strip()
    except OSError:
        return ""


def _describe(vendors: dict[str, str]) -> str:
    return (
        _join([f"{name} ({vendor or 'no vendor'})" for name, vendor in vendors.items()]) or "no GPU"
    )


def _join(names: list[str]) -> str:
    return ", ".join((*names[:_NAMED], "…") if len(names) > _NAMED else names)
