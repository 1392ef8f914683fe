"""Builds a trial engine for sizes before they are proposed, if the library can do so without a device.

A model that runs at some sizes may have no engine for the range between them: TensorRT-RTX refuses
some models unless every size is fixed. Only sizes that it builds are proposed.
"""

import logging
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import onnxruntime as ort
from enginewright_contract.task import EngineRecipe, ShapeProfile
from onnx import ModelProto

from enginewright_runtime.core.failure import SessionError, StageFailure
from enginewright_runtime.core.isolation import Call, Limits
from enginewright_runtime.core.labels import format_label
from enginewright_runtime.core.limits import memory_of_child
from enginewright_runtime.graph.raw import graphs
from enginewright_runtime.graph.raw.storage import size_bytes
from enginewright_runtime.graph.scoped.branches import take_constant_branches
from enginewright_runtime.graph.scoped.inference import Sizes
from enginewright_runtime.graph.scoped.parts import TensorProfile
from enginewright_runtime.session import loading
from enginewright_runtime.session.extensions.libraries import of_model
from enginewright_runtime.tensorrt import diagnosis
from enginewright_runtime.tensorrt.attempts import EngineBuilds, target_name
from enginewright_runtime.tensorrt.flavor import FLAVORS

_log: Final = logging.getLogger(__name__)
_LARGEST: Final = 256 << 20  # bytes of a model for which trial engines are built
_SECONDS: Final = 60.0  # of `TimeLimit`, for one build
_HANG_SECONDS: Final = 600.0  # after which a build is taken to hang
_CAPABILITY: Final = "8.9"  # no class is known yet; the accepted sizes do not depend on it
_NAME: Final = "trial"


@dataclass(frozen=True)
class BuildableSizes:
    """The sizes, of those with which the model runs, for which an engine can be built."""

    profiles: tuple[ShapeProfile, ...]  # to be proposed, unless no engine could be built
    refused: str = ""  # the library's reason, if it builds no engine


def buildable(model: Path, backend: str, profiles: tuple[ShapeProfile, ...]) -> BuildableSizes:
    """Return profiles for which an engine can be built, from those found by running the model.

    They are tried as they are, without empty sizes, then fixed at the opt sizes, and with the branches that
    conversion takes for them. They stay unchanged if the library is missing, or cannot parse the model unconverted.
    """
    refused = ""
    flavor = FLAVORS.get(backend)
    proto = graphs.parse(model)
    if flavor is None or not flavor.targets or size_bytes(proto) > _LARGEST:
        return BuildableSizes(profiles)
    try:
        version = loading.find(backend).version()
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            attempts = EngineBuilds(
                flavor=flavor,
                recipe=EngineRecipe(
                    backend=backend,
                    backend_version=version,
                    ort_version=ort.__version__,
                    accelerator_class="",
                    compute_capability=_CAPABILITY,
                    ahead_of_time=True,
                ),
                capability=_CAPABILITY,
                prepared=proto,
                source=model,
                folder=folder,
                log=folder / "build.log",
                progress=folder / "progress.json",
                timing_cache=folder / "timing.cache",
                plugins=of_model(model).plugins,
                limits=Limits(_HANG_SECONDS, memory_of_child(), work_seconds=_SECONDS),
            )
            for candidate in _narrower(profiles):
                sizes = [
                    TensorProfile(profile.input, profile.min, profile.opt, profile.max)
                    for profile in candidate
                ]
                tried = _take_branches(model, proto, candidate, folder / "taken.onnx")
                answer = attempts.build(tried, _NAME, sizes, (0, 100))
                if answer.built:
                    return BuildableSizes(candidate)
                if not answer.parsed:  # conversion may fix that, and it is unrelated to sizes
                    return BuildableSizes(profiles)
                about = diagnosis.Circumstances(
                    title=flavor.title,
                    target=target_name(_CAPABILITY),
                    label=lambda error: format_label(error.name, error.operator),
                    inputs=tuple(f"{profile.input} {list(profile.opt)}" for profile in candidate),
                )
                refused = diagnosis.failure(answer, about).cause
    except (StageFailure, SessionError) as error:
        _log.info("trial engines cannot be built here: %s", error)
        return BuildableSizes(profiles)
    return BuildableSizes((), refused)


def _take_branches(
    model: Path, proto: ModelProto, profiles: Sequence[ShapeProfile], out: Path
) -> ModelProto:
    """Return the model with the branches of Ifs that these sizes decide, as conversion serves it."""
    if all(node.op_type != "If" for node in graphs.walk_nodes(proto)):
        return proto
    sizes = {
        profile.input: [
            low if low == high else None for low, high in zip(profile.min, profile.max, strict=True)
        ]
        for profile in profiles
    }
    limits = Limits(_HANG_SECONDS, memory_of_child(), work_seconds=_SECONDS)
    taken = Call(_write_taken, "inlining constant branches", limits).run(
        model=model, sizes=sizes, out=out
    )
    return graphs.parse(out) if taken else proto


def _write_taken(*, model: Path, sizes: Sizes, out: Path) -> bool:
    changed = graphs.parse(model)
    taken = bool(take_constant_branches(changed, sizes))
    if taken:
        out.write_bytes(changed.SerializeToString())
    return taken


def _narrower(profiles: Sequence[ShapeProfile]) -> Iterator[tuple[ShapeProfile, ...]]:
    yield tuple(profiles)
    if any(0 in profile.min for profile in profiles):
        lows = [
            tuple(low or min(1, most) for low, most in zip(profile.min, profile.max, strict=True))
            for profile in profiles
        ]
        yield tuple(
            profile.model_copy(update={"min": low})
            for profile, low in zip(profiles, lows, strict=True)
        )
    yield tuple(
        profile.model_copy(update={"min": profile.opt, "max": profile.opt}) for profile in profiles
    )
