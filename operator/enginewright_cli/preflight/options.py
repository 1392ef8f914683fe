"""Parses options, and writes those that apply a proposal. Every error message states what to write instead."""

import re
import shlex
from typing import Final, get_args

from enginewright_contract.images import ImageFacts
from enginewright_contract.report import Proposal
from enginewright_contract.task import (
    Calibration,
    Extension,
    Precision,
    Processing,
    Promise,
    Quantization,
    Recipe,
    Rest,
    ShapeProfile,
)

_RANK: Final = re.compile(r"(\d+(?:x\d+)*|)")
_NUMBER: Final = r"-?\d+(?:\.\d+)?"
_RANGE: Final = re.compile(rf"({_NUMBER})\.\.({_NUMBER})")
_PROFILE_SIZES: Final = 3
_BUNDLED: Final = "ONNXRuntimeExtensions"
_QUANTIZED: Final = frozenset({"INT8", "FP8"})
# The newest opset and IR version that each ONNX Runtime loads: determined by creating sessions with
# the last wheel of each, as `enginewright-runtime probe` does with the installed one.
RUNTIME_LIMITS: Final = {
    "1.16": (19, 9),
    "1.17": (20, 9),
    "1.18": (21, 10),
    "1.19": (21, 10),
    "1.20": (21, 10),
    "1.21": (22, 10),
    "1.22": (22, 10),
    "1.23": (23, 11),
    "1.24": (25, 13),
    **dict.fromkeys((f"1.{minor}" for minor in range(25, 32)), (26, 13)),
}


class OptionError(ValueError):
    """An invalid option; the message states what to write."""


def shape(text: str) -> ShapeProfile:
    """Read `INPUT=MIN:OPT:MAX[@LOW..HIGH]`, or one shape, with sizes such as 1x3x224x224. Raises OptionError."""
    name, separator, rest = text.rpartition("=")
    rest, ranged, numbers = rest.partition("@")
    low, high = _value_range(text, numbers) if ranged else (None, None)
    parts = rest.split(":")
    if not separator or not name or not all(_RANK.fullmatch(part) for part in parts):
        raise OptionError(
            f"--shapes {text!r}: write INPUT=MIN:OPT:MAX, such as x=1x3x224:8x3x224:32x3x224"
        )
    if len(parts) == 1:
        parts *= _PROFILE_SIZES
    if len(parts) != _PROFILE_SIZES:
        raise OptionError(f"--shapes {text!r}: write one shape, or three: MIN:OPT:MAX")
    smallest, typical, largest = (
        tuple(int(size) for size in part.split("x")) if part else () for part in parts
    )
    if not len(smallest) == len(typical) == len(largest):
        raise OptionError(
            f"--shapes {text!r}: give all three shapes the number of dimensions of the input"
        )
    if any(
        not (least <= middle <= most and middle > 0)
        for least, middle, most in zip(smallest, typical, largest, strict=True)
    ):
        raise OptionError(f"--shapes {text!r}: write sizes with MIN <= OPT <= MAX and OPT > 0")
    return ShapeProfile(input=name, min=smallest, opt=typical, max=largest, low=low, high=high)


def _value_range(text: str, numbers: str) -> tuple[float, float]:
    match = _RANGE.fullmatch(numbers)
    low, high = map(float, match.groups()) if match else (1.0, 0.0)
    if low > high:
        raise OptionError(
            f"--shapes {text!r}: write the range of the input's values as @LOW..HIGH, such as n=@1..640"
        )
    return low, high


def option(profile: ShapeProfile) -> str:
    """Return a profile as `--shapes` takes it, the inverse of `shape`."""
    corners = (profile.min, profile.opt, profile.max)
    sizes = ":".join("x".join(map(str, corner)) for corner in corners)
    if profile.low is None or profile.high is None:
        return f"{profile.input}={sizes}"
    return f"{profile.input}={sizes}@{format_number(profile.low)}..{format_number(profile.high)}"


def format_number(number: float) -> str:
    """Return a number without a fraction where it has none, and never with an exponent."""
    return str(int(number)) if number == int(number) else f"{number:f}".rstrip("0")


def suggest(proposal: Proposal | None) -> tuple[str, ...]:
    """Return the options that apply a proposal; () without one."""
    return tuple(
        f"--shapes {shlex.quote(option(profile))}"
        for profile in (proposal.shapes if proposal else ())
        if profile.input.isprintable()
    )


def read_suggested(suggested: tuple[str, ...]) -> tuple[ShapeProfile, ...]:
    """Return the profiles of suggested options, the inverse of `suggest`."""
    return tuple(shape(shlex.split(text)[1]) for text in suggested)


def promise(budget: str | None) -> Promise:
    """Read `--budget`: `allow`, or shares such as `compute=2%,nodes=5%`; without it, Forbid. Raises OptionError."""
    if budget is None:
        return Promise()
    if budget == "allow":
        return Promise(policy="Allow")
    shares: dict[str, float] = {}
    for part in budget.split(","):
        match = re.fullmatch(r"(compute|nodes)=(\d{1,2}(?:\.\d+)?|100)%", part.strip())
        if not match:
            raise OptionError(
                f"--budget {budget!r}: write allow, or shares such as compute=2%,nodes=5%"
            )
        shares[match.group(1)] = float(match.group(2)) / 100
    return Promise(
        policy="Budget",
        max_compute_share=shares.get("compute"),
        max_node_share=shares.get("nodes"),
    )


def precision(text: str | None) -> Precision | None:
    """Read `--precision`. Raises OptionError."""
    if text is None:
        return None
    for argument in get_args(Precision):
        if text.upper() == argument:
            name: Precision = argument
            return name
    raise OptionError(f"--precision {text!r}: write one of {', '.join(get_args(Precision))}")


def rest(text: str | None) -> Rest | None:
    """Read `--rest`; FP32, the default, is None. Raises OptionError."""
    match (text or "FP32").upper():
        case "FP32":
            return None
        case "FP16":
            return "FP16"
        case _:
            raise OptionError(f"--rest {text!r}: write FP32 or FP16")


def extension(text: str) -> Extension:
    """Read `--extension`: a type of spec.extensions whose library is in the runtime image. Raises OptionError."""
    if text != _BUNDLED:
        raise OptionError(
            f"--extension {text!r}: write {_BUNDLED}, or leave it out: a library of your own is loaded in a cluster"
            " only, where spec.extensions names it"
        )
    return Extension(type=_BUNDLED)


def limits(version: str | None, held: ImageFacts) -> tuple[str, int, int]:
    """Return version, newest opset and newest IR version of the ONNX Runtime that will serve. Raises OptionError."""
    if version is None:
        return held.ort_version, held.max_opset, held.max_ir_version
    minor = ".".join(version.split(".")[:2])
    if minor not in RUNTIME_LIMITS:
        versions = ", ".join(RUNTIME_LIMITS)
        raise OptionError(
            f"--runtime-version {version!r}: unknown version; known versions: {versions}"
        )
    opset, ir_version = RUNTIME_LIMITS[minor]
    return version, opset, ir_version


def recipe(
    held: ImageFacts,
    *,
    shapes: tuple[ShapeProfile, ...] = (),
    target_precision: Precision | None = None,
    runtime_version: str | None = None,
    target_opset: int | None = None,
    samples_uri: str | None = None,
    calibration_uri: str | None = None,
    rest_precision: Rest | None = None,
    extensions: tuple[Extension, ...] = (),
    processing: Processing | None = None,
) -> Recipe:
    """Return the recipe of a Job with these options; its backend is filled in later. Raises OptionError."""
    if rest_precision and target_precision not in _QUANTIZED:
        raise OptionError(
            f"--rest {rest_precision}: add --precision INT8 or FP8, which leave the rest"
        )
    version, opset, ir_version = limits(runtime_version, held)
    calibration = Calibration(uri=calibration_uri) if calibration_uri else None
    quantization = (
        Quantization(calibration=calibration, rest=rest_precision)
        if calibration or rest_precision
        else None
    )
    return Recipe(
        backend="",
        ort_version=version,
        max_opset=opset,
        max_ir_version=ir_version,
        shapes=shapes,
        target_opset=target_opset,
        precision=target_precision,
        quantization=quantization,
        extensions=extensions,
        processing=processing,
        samples_uri=samples_uri,
    )
