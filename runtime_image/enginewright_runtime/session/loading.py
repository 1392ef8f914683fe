"""Creates sessions on the promised provider; fallback is refused or reported, never silent.

ONNX Runtime falls back to the CPU if the requested provider cannot be created: usually without an
exception, and in one case while `get_providers()[0]` still names the requested one. So its fallback is
disabled or detected here, and the placement of nodes is read from the session.

Libraries and driver are checked before loading, so the reason is the same on every machine and names
everything that is missing, not only what the loader finds first.
"""

import logging
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import onnxruntime as ort
from enginewright_contract import causes
from enginewright_contract.engines import why_unusable
from enginewright_contract.reasons import Reason
from enginewright_contract.report import Finding, name_nodes

from enginewright_runtime.core.failure import SessionError, StageFailure
from enginewright_runtime.core.limits import threads as threads_of_cgroup
from enginewright_runtime.core.model_files import OF_TENSORRT, may_have
from enginewright_runtime.core.ort_messages import is_out_of_memory, plain
from enginewright_runtime.session import driver, native_log
from enginewright_runtime.session.base import (
    CPU_PROVIDER,
    RECORD_ASSIGNMENT,
    SPINNING,
    CpuBackend,
    ProviderError,
    SessionBackend,
    SessionRequest,
    distribution,
)
from enginewright_runtime.session.cuda import CudaBackend
from enginewright_runtime.session.driver import Device
from enginewright_runtime.session.extensions.libraries import of_model, register
from enginewright_runtime.session.load_errors import cause, engine_cause
from enginewright_runtime.session.openvino import OpenVinoBackend
from enginewright_runtime.session.optimization import HIGHEST, LEVELS, LOWEST, below
from enginewright_runtime.session.placement import SessionPlacement, read_placement
from enginewright_runtime.session.tensorrt import TensorRtBackend
from enginewright_runtime.session.tensorrt_rtx import TensorRtRtxBackend

_log: Final = logging.getLogger(__name__)
_QUIET: Final = 3  # only errors; warnings about the model are findings of `validate`
_BACKENDS: Final[tuple[SessionBackend, ...]] = (
    TensorRtBackend(),
    TensorRtRtxBackend(),
    CudaBackend(),
    OpenVinoBackend(),
    CpuBackend(),
)


@dataclass(frozen=True)
class LoadedModel:
    """A session ready to run, and where its nodes run."""

    session: ort.InferenceSession
    placement: SessionPlacement
    cause: Finding | None = None  # why the provider could not be created
    level: str = HIGHEST  # of ONNX Runtime's graph optimization


def create(
    name: str,
    model_path: Path,
    *,
    threads: int | None = None,
    strict: bool = True,
    device: Device | None = None,
    level: str | None = None,
    runtime_cache: Path | None = None,
) -> LoadedModel:
    """Load `model_path` on backend `name`, with the libraries in its sibling folder `extensions`.

    `strict` refuses a session that fell back completely, as for engines in any case; otherwise it is returned with the
    cause. `level` is of graph optimization, a key of `optimization.LEVELS`, by default the highest at which ONNX Runtime
    loads the model; backends with their own compiler always use the highest. By default there are as many `threads` as
    the cgroup's CPU limit allows, and the driver is queried for the `device`.

    Raises:
        StageFailure: ProviderMissing, ProviderRefused, DriverMissing or DriverTooOld if the provider
            cannot be created; UnsupportedOperator if it takes no node; of an engine, EngineIncompatible
            or EngineVersionMismatch; of a library, ExtensionFailed.
        SessionError: ONNX Runtime rejects the model.
    """
    distribution()
    backend = find(name)
    refuse_fallback = strict or backend.compiled
    device = device or ask_device(backend)
    obstacle = _obstacle(backend, device)
    if obstacle and refuse_fallback:
        raise StageFailure.of(obstacle)
    request = SessionRequest(
        model_path,
        threads or threads_of_cgroup(),
        of_model(model_path),
        level if level and backend.optimized else HIGHEST,
        device_memory=device.memory,
        runtime_cache=runtime_cache,
    )
    try:
        session, output = _attempt(backend, request)
    except SessionError as error:
        if level is not None or not backend.optimized or is_out_of_memory(str(error)):
            raise
        request, session, output = _attempt_lower(backend, request, error)
    if session is not None and backend.provider in session.get_providers():
        placement = read_placement(session, backend.provider)
        if strict:
            _refuse_idle(placement)
        return LoadedModel(session, placement, level=request.level)
    finding = obstacle or cause(backend.provider, output)
    if refuse_fallback:
        raise StageFailure.of(finding)
    session = session or _session(CpuBackend(), request)
    return LoadedModel(session, read_placement(session, backend.provider), finding, request.level)


def find(name: str) -> SessionBackend:
    """Return the backend called `name`; ProviderMissing lists the available ones."""
    offered = {backend.name: backend for backend in _BACKENDS if backend.is_offered()}
    if name not in offered:
        raise StageFailure(
            Reason.PROVIDER_MISSING,
            f"backend {name!r} is not in this image: its {distribution()} {ort.__version__} has"
            f" {', '.join(offered)}",
        )
    return offered[name]


def available() -> dict[str, SessionBackend]:
    """Return the backends whose libraries this image contains, except NVIDIA's CUDA and driver."""
    return {
        backend.name: backend
        for backend in _BACKENDS
        if backend.is_offered() and backend.complete()
    }


def unusable_backends() -> dict[str, str]:
    """Return the backends whose library in this image cannot be used, and why."""
    return {
        backend.name: why
        for backend in _BACKENDS
        if backend.is_offered() and (why := backend.unusable())
    }


def ask_device(backend: SessionBackend) -> Device:
    """Query the driver that `backend` needs."""
    return driver.ask(backend.cuda_major()) if backend.needs_driver else driver.NOT_NEEDED


def _obstacle(backend: SessionBackend, device: Device) -> Finding | None:
    findings: list[Finding] = []
    if names := backend.missing_libraries():
        message = (
            f"{backend.provider} needs libraries that are not in this image: {', '.join(names)}"
        )
        if why := backend.unusable():
            message += f"; {why}"
        findings.append(Finding(reason=Reason.PROVIDER_MISSING, cause=message))
    if device.driver.reason:
        findings.append(Finding(reason=device.driver.reason, cause=device.driver.message))
    elif unusable := why_unusable(backend.name, device.compute_capability):
        reason = Reason.ENGINE_INCOMPATIBLE if backend.compiled else Reason.PROVIDER_REFUSED
        findings.append(Finding(reason=reason, cause=unusable))
    return causes.first(findings)


def _attempt(
    backend: SessionBackend, request: SessionRequest
) -> tuple[ort.InferenceSession | None, str]:
    refusal: SessionError | None = None
    session = None
    message = ""
    with native_log.capture() as log:
        try:
            session = _session(backend, request)
        except ProviderError as error:
            message = str(error)
        except SessionError as error:
            refusal = error
    if refusal is not None:
        if backend.compiled:
            raise StageFailure.of(engine_cause(backend.name, f"{log.text}\n{refusal}")) from refusal
        raise refusal
    return session, f"{log.text}\n{message}"


def _attempt_lower(
    backend: SessionBackend, request: SessionRequest, refusal: SessionError
) -> tuple[SessionRequest, ort.InferenceSession | None, str]:
    """Try lower levels of graph optimization, because one may fail on a valid model: it folds unused branches.

    Raises `refusal` if ONNX Runtime rejects the model without optimization too.
    """
    loaded: tuple[SessionRequest, ort.InferenceSession | None, str] | None = None
    # the lowest first: if that fails, the model itself is invalid
    for level in sorted(below(request.level), key=lambda name: name != LOWEST):
        lowered = replace(request, level=level)
        try:
            loaded = lowered, *_attempt(backend, lowered)
        except SessionError:
            if loaded is None:
                raise refusal from None
            continue
        if level != LOWEST:
            break
    if loaded is None:
        raise refusal
    _log.warning(
        "loaded with graph optimization %s, because ONNX Runtime refuses the model with %s: %s",
        loaded[0].level,
        request.level,
        plain(str(refusal)),
    )
    return loaded


def _session(backend: SessionBackend, request: SessionRequest) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = request.threads
    options.inter_op_num_threads = 1
    options.log_severity_level = _QUIET
    options.add_session_config_entry(RECORD_ASSIGNMENT, "1")
    options.add_session_config_entry(SPINNING, "0")
    options.graph_optimization_level = LEVELS[request.level]
    register(options, request.extensions)
    providers = backend.providers(options, request)
    path = request.model_path
    try:
        with _find_readable(backend, path) as readable:
            session = ort.InferenceSession(
                str(readable), options, providers=providers, enable_fallback=0
            )
    except (RuntimeError, ValueError) as error:
        # the exceptions that ONNX Runtime's own fallback catches: the provider failed, not the model
        raise ProviderError(str(error)) from error
    except Exception as error:
        # ONNX Runtime's exceptions have no common base class but Exception
        raise SessionError(str(error)) from error
    session.disable_fallback()  # otherwise `run` retries on the CPU
    return session


def _find_readable(backend: SessionBackend, model: Path) -> AbstractContextManager[Path]:
    if backend.provider != CPU_PROVIDER or not may_have(model, OF_TENSORRT):
        return nullcontext(model)
    # imports a parser of models, which servers need for nothing else
    from enginewright_runtime.session.reference import runnable  # noqa: PLC0415 - above

    return runnable(model)


def _refuse_idle(placement: SessionPlacement) -> None:
    if placement.total and not placement.nodes.get(placement.provider):
        raise StageFailure(
            Reason.UNSUPPORTED_OPERATOR,
            f"{placement.provider} was assigned none of {placement.total} nodes:"
            f" {name_nodes(list(placement.elsewhere))} would run elsewhere",
            nodes=placement.elsewhere,
        )
