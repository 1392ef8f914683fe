"""The instruction sets of a processor, as far as they decide which models serve on it. Pure.

Without VNNI, x86 processors add two products of UINT8 and INT8 in 16 bits that saturate (VPMADDUBSW), in ONNX
Runtime's kernels and in oneDNN's (OpenVINO) alike: 255 x 127 twice gives 32,767. With VNNI or AMX, and on ARM, such
sums have 32 bits.
"""

from collections.abc import Collection
from enum import StrEnum
from typing import Final

from enginewright_contract.base import Message


class Feature(StrEnum):
    """Instruction sets that decide which kernels run."""

    AVX2 = "AVX2"
    AVX512 = "AVX512"
    VNNI = "VNNI"  # of AVX-512, or AVX-VNNI
    AMX = "AMX"  # of INT8
    ASIMDDP = "ASIMDDP"  # dot products
    I8MM = "I8MM"
    SVE = "SVE"


ARM: Final = frozenset({"aarch64", "arm64"})  # the names in Linux, and in Go and macOS
_EXACT: Final = frozenset({Feature.VNNI, Feature.AMX, Feature.ASIMDDP, Feature.I8MM, Feature.SVE})

_X86: Final = (Feature.AVX2, Feature.AVX512, Feature.VNNI, Feature.AMX)  # the fastest last
CPUINFO: Final = "/proc/cpuinfo"
_FLAGS: Final = {  # of x86 (arch/x86/include/asm/cpufeatures.h) and of ARM64 (Documentation/arch/arm64/elf_hwcaps.rst)
    "avx2": Feature.AVX2,
    "avx512f": Feature.AVX512,
    "avx512_vnni": Feature.VNNI,
    "avx_vnni": Feature.VNNI,
    "amx_int8": Feature.AMX,
    "asimddp": Feature.ASIMDDP,
    "i8mm": Feature.I8MM,
    "sve": Feature.SVE,
}


class Processor(Message):
    """A machine's processor, as the machine itself reports it."""

    architecture: str  # x86_64, aarch64, ... as uname reports it
    model: str = ""  # such as AMD EPYC 7763 64-Core Processor; "": not reported
    features: tuple[Feature, ...] = ()  # (): none of them, or not reported
    # Whether sums of UINT8 x INT8 products are exact in ONNX Runtime, if measured
    exact_products: bool | None = None

    @property
    def described(self) -> str:
        """Return the processor as text, for messages."""
        sets = ", ".join(self.features) or f"none of {', '.join(Feature)}"
        return f"{self.model or 'unnamed'} ({self.architecture}: {sets})"


def parse(cpuinfo: str, architecture: str) -> Processor:
    """Return the features that all processors in the text of /proc/cpuinfo have."""
    model = ""
    common: set[str] | None = None
    for line in cpuinfo.splitlines():
        name, _, value = line.partition(":")
        field = name.strip()
        if field == "model name":
            model = model or " ".join(value.split())
        elif field in {"flags", "Features"}:
            flags = set(value.split())
            common = flags if common is None else common & flags
    present = {_FLAGS[flag] for flag in (common or set()) & _FLAGS.keys()}
    features = tuple(feature for feature in Feature if feature in present)
    return Processor(architecture=architecture, model=model, features=features)


def has_exact_products(features: Collection[Feature]) -> bool:
    """Return whether a processor with these features sums UINT8 x INT8 products exactly."""
    return not _EXACT.isdisjoint(features)


def mismatch(
    *, saturable: bool | None, verified_on: Processor | None, serving: Processor | None
) -> str | None:
    """Return why outputs differ on the serving processor, as text, or None if they do not, as far as is known.

    `saturable`: whether the model has products that saturate where sums have 16 bits.
    """
    if not saturable or verified_on is None or serving is None:
        return None
    if None in (verified_on.exact_products, serving.exact_products):
        return None
    if verified_on.exact_products == serving.exact_products:
        return None
    here, there = (
        "exact" if processor.exact_products else "saturating"
        for processor in (serving, verified_on)
    )
    return (
        f"INT8 products are {here} on this processor, {serving.described}, but were {there} on the one that the"
        f" model was verified on, {verified_on.described}: outputs differ"
    )


def timing_mismatch(processor: Processor, feature: Feature) -> str | None:
    """Return why times on a processor are not representative of those with a feature, or None if they are."""
    if feature not in processor.features:
        return f"this machine's processor, {processor.described}, has no {feature}"
    faster = _X86[_X86.index(feature) + 1 :] if feature in _X86 else ()
    if more := [item for item in faster if item in processor.features]:
        return f"this machine's processor, {processor.described}, has {', '.join(more)} too"
    return None
