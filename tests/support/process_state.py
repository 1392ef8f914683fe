"""Restores process state that commands change permanently when tests call them in this process."""

import logging
import os
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def process_state() -> Iterator[None]:
    """Restore environment and log levels after each test."""
    environment = dict(os.environ)
    loggers = [logging.getLogger(name) for name in ("enginewright", "enginewright.kube")]
    levels = [logger.level for logger in loggers]
    yield
    if os.environ != environment:
        for name in os.environ.keys() - environment.keys():
            del os.environ[name]
        os.environ.update(environment)
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)
