"""A device is asked for before anything else; where there is none, every test says so and is skipped."""

import pytest
from enginewright_runtime.session import driver
from enginewright_runtime.session.driver import Device


@pytest.fixture(scope="session", autouse=True)
def device() -> Device:
    """Return the device at hand."""
    found = driver.ask(None)
    if found.driver.reason is not None:
        pytest.skip(f"no NVIDIA device here: {found.driver.message}")
    return found
