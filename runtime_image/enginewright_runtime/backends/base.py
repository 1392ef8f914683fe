"""A session that runs where it was told to run, or none.

ONNX Runtime serves from the CPU when the wanted provider cannot be made: mostly without an
exception, and in one case with `get_providers()[0]` still naming the wanted one. So every way in
which it falls back by itself is switched off or looked for here, and which node runs where is read
from the session (ONNX Runtime pull request 26781), never concluded from `get_providers()`.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, ClassVar, Final, Protocol

import onnxruntime as ort
from enginewright.contract.reasons import Reason
from enginewright.contract.report import name_nodes

from enginewright_runtime.failure import StageFailure
from enginewright_runtime.limits import threads as threads_of_cgroup

CPU_PROVIDER: Final = "CPUExecutionProvider"
_RECORD_ASSIGNMENT: Final = "session.record_ep_graph_assignment_info"
_SPINNING: Final = (
    "session.intra_op.allow_spinning"  # burns the quota that the server's threads need
)
_QUIET: Final = 3  # errors only; warnings of a model's own making are findings of `validate`


@dataclass(frozen=True)
class Placement:
    """Which execution provider runs which node, as ONNX Runtime assigned them.

    Counted after constant folding and before fusion, so in nodes of the file less the folded ones.
    """

    provider: str  # the one that was asked for
    nodes: Mapping[str, int]  # provider -> nodes
    elsewhere: tuple[str, ...] = ()  # "name (OpType)" of nodes on another provider

    @property
    def total(self) -> int:
        """Return the number of nodes."""
        return sum(self.nodes.values())

    @property
    def share(self) -> float:
        """Return the share of nodes on the wanted provider; 1.0 for a model without nodes."""
        return self.nodes.get(self.provider, 0) / self.total if self.total else 1.0


@dataclass(frozen=True)
class LoadedModel:
    """A session ready to run, and where its nodes run."""

    session: ort.InferenceSession
    placement: Placement


@dataclass(frozen=True)
class Request:
    """What a session is to be made of."""

    model_path: Path
    threads: int
    cache_dir: Path | None  # of this artefact alone: providers' file names collide across weights


class Backend(Protocol):
    """One way to run a model."""

    name: ClassVar[str]
    provider: ClassVar[str]

    def provider_options(self, request: Request) -> dict[str, str]:
        """Return the execution provider's options."""

    def version(self) -> str:
        """Return the version of the backend's library."""


class SessionError(Exception):
    """ONNX Runtime refused the model; the text is its own, for a stage to map to a reason."""


def create(
    name: str,
    model_path: Path,
    *,
    threads: int | None = None,
    cache_dir: Path | None = None,
) -> LoadedModel:
    """Load `model_path` on backend `name`, strictly.

    Args:
        name: a name of `available()`.
        model_path: the .onnx file; external data lies beside it.
        threads: compute threads; None: as many as the cgroup's CPU limit grants.
        cache_dir: a writable folder for what the provider compiles, of this artefact alone.

    Raises:
        StageFailure: ProviderMissing, when the provider is not in this image, could not be made or
            took no node.
        SessionError: ONNX Runtime refused the model.
    """
    distribution()
    backend = find(name)
    request = Request(model_path, threads or threads_of_cgroup(), cache_dir)
    session = _session(backend, request)
    placement = read_placement(session, backend.provider)
    _refuse_whole_fallback(backend, session, placement)
    return LoadedModel(session, placement)


def find(name: str) -> Backend:
    """Return the backend called `name`; ProviderMissing lists those that there are."""
    backends = available()
    if name not in backends:
        raise StageFailure(
            Reason.PROVIDER_MISSING,
            f"backend {name!r} is not in this image: its {distribution()} {ort.__version__} has"
            f" {', '.join(backends)}",
        )
    return backends[name]


def available() -> dict[str, Backend]:
    """Return the backends whose provider this image's ONNX Runtime was built with, by name."""
    from enginewright_runtime.backends.cpu import CpuBackend  # noqa: PLC0415 - they import this
    from enginewright_runtime.backends.openvino import OpenVinoBackend  # noqa: PLC0415 - likewise

    known: tuple[Backend, ...] = (OpenVinoBackend(), CpuBackend())
    present = set(ort.get_available_providers())
    return {backend.name: backend for backend in known if backend.provider in present}


def read_placement(session: ort.InferenceSession, provider: str) -> Placement:
    """Return the placement of a session made with assignment recording on."""
    nodes: Counter[str] = Counter()
    elsewhere: list[str] = []
    for subgraph in session.get_provider_graph_assignment_info():
        for node in subgraph.get_nodes():
            nodes[subgraph.ep_name] += 1
            if subgraph.ep_name != provider:
                elsewhere.append(f"{node.name or 'unnamed'} ({node.op_type})")
    return Placement(provider, dict(nodes), tuple(elsewhere))


def distribution() -> str:
    """Return the one distribution that owns the folder `onnxruntime`.

    Every ONNX Runtime wheel owns that folder; with two installed the last one wins, its provider
    goes and `pip check` says nothing.

    Raises:
        StageFailure: ProviderMissing, naming the distributions.
    """
    owners = sorted(set(metadata.packages_distributions().get("onnxruntime", [])))
    if len(owners) != 1:
        raise StageFailure(
            Reason.PROVIDER_MISSING,
            f"{len(owners)} distributions own the folder onnxruntime ({', '.join(owners) or 'none'}),"
            " so which providers exist is chance",
            remedy="build the image with exactly one of them",
        )
    return owners[0]


def _session(backend: Backend, request: Request) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = request.threads
    options.inter_op_num_threads = 1
    options.log_severity_level = _QUIET
    options.add_session_config_entry(_RECORD_ASSIGNMENT, "1")
    options.add_session_config_entry(_SPINNING, "0")
    providers: list[Any] = [(backend.provider, backend.provider_options(request))]
    if backend.provider != CPU_PROVIDER:
        providers.append(CPU_PROVIDER)
    try:
        session = ort.InferenceSession(
            str(request.model_path), options, providers=providers, enable_fallback=0
        )
    except Exception as error:
        # pybind11 exceptions of ONNX Runtime share no base class but Exception
        raise SessionError(str(error)) from error
    session.disable_fallback()  # of `run`, which would retry on the CPU
    return session


def _refuse_whole_fallback(
    backend: Backend, session: ort.InferenceSession, placement: Placement
) -> None:
    if backend.provider not in session.get_providers():
        raise StageFailure(
            Reason.PROVIDER_MISSING,
            f"ONNX Runtime could not make {backend.provider} and left the session to"
            f" {', '.join(session.get_providers())}",
        )
    if placement.total and not placement.nodes.get(backend.provider):
        raise StageFailure(
            Reason.PROVIDER_MISSING,
            f"{backend.provider} took none of {placement.total} nodes:"
            f" {name_nodes(list(placement.elsewhere))} would run elsewhere",
            nodes=placement.elsewhere,
        )
