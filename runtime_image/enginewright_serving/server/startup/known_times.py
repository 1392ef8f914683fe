"""Times of an earlier start of the same revision: a measurement ends as soon as it confirms them.

So a pod that starts beside others takes a few runs instead of hundreds. Only times are known, no proof of outputs, and
only those that runs of this pod confirm are used: it may have another processor, or a neighbour.
"""

import logging
from pathlib import Path
from typing import Final

from enginewright_contract.base import first_problem
from enginewright_contract.execution import StartTimes
from pydantic import ValidationError

_log: Final = logging.getLogger(__name__)
_ALIKE: Final = 1.3  # factor within which a time confirms another, either way
_ALIKE_GAIN: Final = 1.1  # likewise, a gain


def read_times(file: Path) -> StartTimes:
    """Return the times in a file, which may be missing or empty: then no time is known."""
    try:
        text = file.read_text()
        return StartTimes.model_validate_json(text) if text else StartTimes()
    except OSError:  # outside a pod, and in pods of earlier releases
        return StartTimes()
    except (ValidationError, UnicodeDecodeError) as error:
        why = first_problem(error) if isinstance(error, ValidationError) else "it is no text"
        _log.warning("everything is measured: %s has no times of another pod: %s", file.name, why)
        return StartTimes()


def is_confirmed(earlier: float, measured: float) -> bool:
    """Return whether a time that was measured is about the earlier one."""
    return earlier / _ALIKE <= measured <= earlier * _ALIKE


def is_gain_confirmed(earlier: float, measured: float) -> bool:
    """Return whether a gain that was measured is about the earlier one, more closely: it decides by little."""
    return earlier / _ALIKE_GAIN <= measured <= earlier * _ALIKE_GAIN
