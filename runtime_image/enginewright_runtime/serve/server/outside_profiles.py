"""Serves sizes outside the shape profiles on the CPU, where policy Allow permits that fallback.

An engine cannot run such sizes, and `spec.shapes` excludes them for other backends. The prepared model can,
in a session of its own with a thread of its own, so that slow runs delay no request within the profiles.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeAlias

from enginewright.contract.execution import OutsideProfiles
from enginewright.contract.manifest import Manifest
from enginewright.contract.task import OUTSIDE_PATH, Promise, ServeTask
from numpy.typing import NDArray
from typing_extensions import override

from enginewright_runtime.core import limits
from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.core.logs import format_bytes
from enginewright_runtime.serve.manifest import read_manifest
from enginewright_runtime.serve.server.batching import elements_of
from enginewright_runtime.serve.server.buckets import ComputeBuckets
from enginewright_runtime.serve.server.decode import Decoder, Feeds
from enginewright_runtime.serve.server.diagnosis import Diagnosis
from enginewright_runtime.serve.server.grpc.decode import GrpcDecoder, GrpcRequest
from enginewright_runtime.serve.server.grpc.wire import SplitRequest
from enginewright_runtime.serve.server.inference_request import InferenceRequest
from enginewright_runtime.serve.server.memory import resident_bytes
from enginewright_runtime.serve.server.message import Body
from enginewright_runtime.serve.server.model_loading import load_session, read_model
from enginewright_runtime.serve.server.outside_memory import RunsInLimitedMemory
from enginewright_runtime.serve.server.proofs import StartupProver
from enginewright_runtime.serve.server.stopping import StoppableSession
from enginewright_runtime.session.base import CPU_PROVIDER
from enginewright_runtime.session.bounded import ShrinkingSession, limit_memory
from enginewright_runtime.session.loading import LoadedModel, ask_device, find
from enginewright_runtime.session.request_errors import OutOfProfileError
from enginewright_runtime.session.runner import Runner
from enginewright_runtime.session.samples import GoldenSample
from enginewright_runtime.session.signature import Signature

_log: Final = logging.getLogger(__name__)
_BACKEND: Final = "cpu"
_MEMORY_SHARE: Final = 0.75  # of what the container has left: requests need the rest
_FILE_COPIES: Final = (
    2  # of a model's files that its session takes: weights, also in the kernels' layout
)

_Load: TypeAlias = Callable[[ServeTask, Path, Manifest], LoadedModel]
_Read: TypeAlias = Callable[
    [ServeTask, Path, Manifest, LoadedModel], tuple[Signature, list[GoldenSample]]
]


@dataclass(frozen=True)
class OutsideModel:
    """The prepared model on the CPU, which agrees with a golden sample."""

    signature: Signature  # accepts every size that the model itself does not exclude
    run: Callable[[list[str], Feeds], list[NDArray[Any]]]
    stop_run: Callable[[float], None]  # terminates the current run if it exceeds these seconds
    diagnosis: Diagnosis
    slowest_run: float  # seconds, at startup


def serve_outside(
    task: ServeTask,
    artifact: Path,
    signature: Signature,
    threads: int,
    progress: Callable[[str], None],
) -> tuple[OutsideModel | None, OutsideProfiles | None]:
    """Return what serves sizes outside the shape profiles, if anything, and its report.

    Args:
        task: of the pod.
        artifact: the folder with what it serves.
        signature: of that.
        threads: for computing outside the profiles.
        progress: called with the current step, for users.
    """
    if not task.serves_outside or not any(
        each.excludes_sizes for each in signature.inputs.values()
    ):
        return None, None

    def load(on_cpu: ServeTask, folder: Path, manifest: Manifest) -> LoadedModel:
        device = ask_device(find(on_cpu.backend))
        return load_session(on_cpu, folder, manifest, threads, device, None, bounded=True)

    folder = artifact if task.engine_key is None else artifact / Path(OUTSIDE_PATH).name
    found = load_outside(task, folder, load, read_model, progress)
    if isinstance(found, str):
        return None, OutsideProfiles(off=found)
    return found, OutsideProfiles(provider=CPU_PROVIDER)


def load_outside(
    task: ServeTask, folder: Path, load: _Load, read: _Read, progress: Callable[[str], None]
) -> OutsideModel | str:
    """Load and verify the model for sizes outside the profiles, or return why there is none.

    Args:
        task: of the pod.
        folder: with the prepared model.
        load: creates a session of what a task asks for.
        read: returns its signature and golden samples.
        progress: called with the current step, for users.
    """
    changes = {"backend": _BACKEND, "engine_key": None, "promise": Promise()}
    on_cpu = task.model_copy(update=changes)
    progress("loading the model for sizes outside the shape profiles")
    try:
        manifest = read_manifest(on_cpu, folder)
        needed = _FILE_COPIES * sum(each.size_bytes for each in manifest.files)
        left = int((limits.memory() - resident_bytes()) * _MEMORY_SHARE)
        if needed > left:
            return (
                f"the model takes about {format_bytes(needed)} once more and {format_bytes(left)} are left;"
                " raise spec.podTemplate.resources.limits.memory"
            )
        limit_memory(left)
        loaded = load(on_cpu, folder, manifest)
        signature, samples = read(on_cpu, folder, manifest, loaded)
        session = StoppableSession(ShrinkingSession(loaded.session))
        runner = Runner(session, signature)
        runs = RunsInLimitedMemory(runner.run)
        # one is enough: the CPU has been the reference of all
        smallest = min(samples, key=lambda sample: elements_of(sample.feeds))
        prover = StartupProver(runner, signature, ComputeBuckets())
        slowest = prover.prove([smallest], _without_profiles(manifest), progress)
    except StageFailure as failure:
        _log.warning("sizes outside the shape profiles are refused: %s", failure.message)
        return failure.message
    return OutsideModel(
        signature.without_profiles(least=0 if loaded.placement.accepts_empty else 1),
        runs.run,
        session.stop,
        # nothing else uses the session's memory: what exceeds it is due to the request's sizes
        Diagnosis(runs.run, signature.outputs, samples, memory=0),
        slowest,
    )


def _without_profiles(manifest: Manifest) -> Manifest:
    recipe = manifest.recipe.model_copy(update={"shapes": ()})
    return manifest.model_copy(update={"recipe": recipe})


class OutsideDecoder(Decoder):
    """Marks requests that are outside the profiles instead of refusing them."""

    def __init__(self, signature: Signature, outside: Signature) -> None:
        """Create it; `outside` accepts all sizes."""
        super().__init__(signature)
        self._outside = Decoder(outside)

    @override
    def is_slow(self, body: Body, json_length: int | None) -> bool:
        slow = super().is_slow(body, json_length)
        return slow or self._outside.is_slow(body, json_length)

    @override
    def decode(self, body: Body, json_length: int | None) -> tuple[InferenceRequest, Feeds]:
        try:
            return super().decode(body, json_length)
        except OutOfProfileError:
            plan, feeds = self._outside.decode(body, json_length)
            return replace(plan, outside=True), feeds


class OutsideGrpcDecoder(GrpcDecoder):
    """The same for gRPC."""

    def __init__(
        self,
        signature: Signature,
        check_model: Callable[[str, str], None],
        *,
        most_typed_bytes: int,
        outside: Signature,
    ) -> None:
        """Create it; `outside` accepts all sizes."""
        super().__init__(signature, check_model, most_typed_bytes=most_typed_bytes)
        self._outside = GrpcDecoder(outside, check_model, most_typed_bytes=most_typed_bytes)

    @override
    def is_slow(self, parts: SplitRequest, size: int) -> bool:
        return super().is_slow(parts, size) or self._outside.is_slow(parts, size)

    @override
    def decode(self, message: memoryview, parts: SplitRequest) -> tuple[GrpcRequest, Feeds]:
        try:
            return super().decode(message, parts)
        except OutOfProfileError:
            request, feeds = self._outside.decode(message, parts)
            return replace(request, plan=replace(request.plan, outside=True)), feeds
