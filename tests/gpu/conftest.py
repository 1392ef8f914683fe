"""Skips every test where there is no device, and says why."""

import pytest
from enginewright_runtime.session import driver
from enginewright_runtime.session.driver import Device


@pytest.fixture(scope="session", autouse=True)
def device() -> Device:
    """Return the device at hand."""
    device = driver.ask(None)
    if device.driver.reason is not None:
        pytest.skip(f"no NVIDIA device here: {device.driver.message}")
    return device
