"""Counts golden outputs that show no number: empty, or NaN and infinite throughout. Pure."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from enginewright_runtime.proof.parity.measuring import has_numbers
from enginewright_runtime.session.arrays import Arrays


@dataclass(frozen=True, order=True)
class Blank:
    """How much the golden outputs leave open; the fewer the better."""

    outputs: int = 0  # that show no number in any sample
    of_samples: int = 0  # of one sample, that have elements and show no number


def find_blank(outputs: Arrays, dtypes: Mapping[str, str]) -> list[str]:
    """Return the outputs that show no number in any sample; `outputs` are by SAMPLE/OUTPUT, `dtypes` by output."""
    shown: dict[str, bool] = {}
    for key, array in outputs.items():
        name = key.partition("/")[2]
        shown[name] = shown.get(name, False) or has_numbers(array, dtypes.get(name))
    return [name for name, shows in shown.items() if not shows]


def count_blank(outputs: Arrays, dtypes: Mapping[str, str], samples: Collection[str]) -> Blank:
    """Count, as of `find_blank`, and the outputs of these single samples."""
    of_samples = 0
    for key, array in outputs.items():
        sample, _, name = key.partition("/")
        if sample in samples and array.size and not has_numbers(array, dtypes.get(name)):
            of_samples += 1
    return Blank(len(find_blank(outputs, dtypes)), of_samples)
