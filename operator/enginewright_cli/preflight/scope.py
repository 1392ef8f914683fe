"""What a verdict speaks of, and what it cannot know: a target is a backend, not a cluster's class.

A class may list several backends, of which the first that holds serves; here only those are looked at that
are installed, and asked for.
"""

from collections.abc import Sequence
from typing import Final

from enginewright.contract.images import ImageFacts

from enginewright_cli.preflight.targets import PreflightTarget

# backend -> those that a class of the same devices may list before it
_BEFORE: Final = {
    "cpu": ("openvino",),
    "openvino": ("cpu",),
    "tensorrt-rtx": ("tensorrt", "cuda"),
    "cuda": ("tensorrt", "tensorrt-rtx"),
}


def scope(target: PreflightTarget, targets: Sequence[PreflightTarget], held: ImageFacts) -> str:
    """Return, in one sentence, what the verdict of `target` speaks of.

    Args:
        target: one of `targets`.
        targets: all that are looked at.
        held: what is installed here.
    """
    backend = target.backend
    what = (
        f"backend {backend} {held.backends[backend]} ({held.ort_distribution} {held.ort_version}),"
        " as installed here"
    )
    looked = {each.backend for each in targets}
    others = [each for each in _BEFORE[backend] if each not in looked]
    if not others:
        return what
    listed = " or ".join(others)
    return (
        f"{what}; not known is what a class does whose backends begin with {listed}:"
        " `enginewright plan` names the backend of each class"
    )
