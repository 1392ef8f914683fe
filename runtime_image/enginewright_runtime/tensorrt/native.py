"""All calls into NVIDIA's library; they run in a child process.

Each build is a separate process: the library keeps the first logger it gets, produces different
bytes for the second build of a process, and may crash. The functions here interpret nothing:
`diagnosis` does.
"""

import resource
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TextIO

from enginewright_runtime.graph.scoped.parts import TensorProfile
from enginewright_runtime.tensorrt import diagnosis
from enginewright_runtime.tensorrt import flavor as flavors
from enginewright_runtime.tensorrt.layers import element_types, of_network
from enginewright_runtime.tensorrt.plugins import load as load_libraries
from enginewright_runtime.tensorrt.progress import report_progress
from enginewright_runtime.tensorrt.results import BuildResult, ParserError

_LOG_BYTES: Final = 512 << 10  # of the build log; later messages are dropped
_ERRORS: Final = 200  # returned at most
_NULL: Final = "nullptr"  # in the error of the bindings for a null pointer of the library


def build(
    *,
    backend: str,
    version: str,
    model: Path,
    engine: Path,
    log: Path,
    progress: Path,
    span: tuple[float, float],
    profiles: Sequence[TensorProfile],
    compute_capability: str | None,
    workspace_bytes: int | None,
    optimization_level: int | None,
    timing_cache: Path,
    layers: Path,
    plugins: Sequence[Path],
) -> BuildResult:
    """Build one engine of the .onnx file `model`, whose external data lies beside it.

    `version` is the one that the library must have; its messages are appended to `log`. `span` are
    the percentages of the complete build at which this one starts and ends. `profiles` are of the
    inputs that have no fixed sizes, or whose values are sizes. The device determines a missing
    `compute_capability` ("8.9"), the library a missing `workspace_bytes` or `optimization_level` (0
    to 5). The network's layers are written to `layers`.
    """
    flavor = flavors.find(backend)
    trt = flavors.load(flavor, version)
    with log.open("a") as sink:
        opened = _parse(trt, flavor, sink, model, plugins)
        logger, builder, network = opened.logger, opened.builder, opened.network
        result = opened.result
        if not result.parsed:
            return _finish(result, logger)
        config = _create("configuration", builder.create_builder_config, flavor, logger)
        monitor = _monitor(trt, progress, span)
        config.progress_monitor = monitor
        supported = _set_target(trt, flavor, config, compute_capability)
        if supported is not None:
            return _finish(replace(result, supported=tuple(supported)), logger)
        if workspace_bytes is not None:
            config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, workspace_bytes)
        if optimization_level is not None:
            config.builder_optimization_level = optimization_level
        result = replace(
            result,
            workspace_bytes=config.get_memory_pool_limit(trt.MemoryPoolType.WORKSPACE),
            unprofiled=tuple(_find_unprofiled(network, profiles)),
            shape_inputs=tuple(
                tensor.name for tensor in _inputs(network) if tensor.is_shape_tensor
            ),
        )
        cache = _timing_cache(flavor, config, timing_cache)
        profile = _create("profile", builder.create_optimization_profile, flavor, logger)
        if not result.unprofiled and _set_profile(profile, network, config, profiles):
            plan = builder.build_serialized_network(network, config)
            if plan is not None:
                engine.write_bytes(memoryview(plan))
                result = replace(result, built=True)
                layers.write_text(of_network(network, engine.name).to_json())
                if cache is not None and (timings := cache.serialize()) is not None:
                    timing_cache.write_bytes(memoryview(timings))
        return _finish(result, logger)


def parse(
    *, backend: str, version: str, model: Path, log: Path, plugins: Sequence[Path]
) -> BuildResult:
    """Parse a .onnx file, whose external data lies beside it, without building; arguments as in `build`."""
    flavor = flavors.find(backend)
    flavors.parse_without_device(flavor)
    trt = flavors.load(flavor, version)
    with log.open("a") as sink:
        opened = _parse(trt, flavor, sink, model, plugins)
        types = element_types(opened.network) if opened.result.parsed else ()
        return _finish(replace(opened.result, types=types), opened.logger)


@dataclass(frozen=True)
class _ParsedModel:
    """A network, and what has to live as long as it: the parser owns its weights."""

    logger: Any
    builder: Any
    network: Any
    parser: Any
    result: BuildResult


def _parse(
    trt: Any,  # noqa: ANN401 - NVIDIA's module
    flavor: flavors.Flavor,
    sink: TextIO,
    model: Path,
    plugins: Sequence[Path],
) -> _ParsedModel:
    logger = logger_of(trt, sink)
    builder = open_builder(trt, flavor, logger)
    load_libraries(trt, logger, plugins)
    network = open_network(trt, flavor, logger, builder)
    parser = open_parser(trt, flavor, logger, network)
    parsed = parser.parse_from_file(str(model))
    result = BuildResult(built=False, parsed=parsed, parser=parser_errors(parser))
    return _ParsedModel(logger, builder, network, parser, result)


def _finish(result: BuildResult, logger: Any) -> BuildResult:  # noqa: ANN401 - NVIDIA's
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return replace(result, errors=tuple(logger.errors), peak_memory_bytes=peak)


def load_plugins(*, backend: str, version: str, plugins: Sequence[Path], log: Path) -> None:
    """Load libraries with plug-ins, to check that this works; arguments as in `build`."""
    flavor = flavors.find(backend)
    trt = flavors.load(flavor, version)
    with log.open("a") as sink:
        logger = logger_of(trt, sink)
        builder = open_builder(trt, flavor, logger)  # which makes the logger the library's
        load_libraries(trt, logger, plugins)
        del builder


def inspect(*, backend: str, version: str, engine: Path, log: Path, plugins: Sequence[Path]) -> str:
    """Load an engine on its device; return its inspector's JSON, empty if it cannot be loaded."""
    flavor = flavors.find(backend)
    trt = flavors.load(flavor, version)
    with log.open("a") as sink:
        logger = logger_of(trt, sink)
        runtime = _open(trt.Runtime, "deserialize_cuda_engine", flavor, logger)
        load_libraries(trt, logger, plugins)
        loaded = runtime.deserialize_cuda_engine(engine.read_bytes())
        if loaded is None:
            return ""
        inspector = loaded.create_engine_inspector()
        if inspector is None:
            return ""
        return str(inspector.get_engine_information(trt.LayerInformationFormat.JSON) or "")


def merge_timings(
    *, backend: str, version: str, timings: Sequence[Path], target: Path, log: Path
) -> bool:
    """Write all timings of several files to `target`, if they can be merged; return whether they were."""
    flavor = flavors.find(backend)
    trt = flavors.load(flavor, version)
    with log.open("a") as sink:
        logger = logger_of(trt, sink)
        builder = open_builder(trt, flavor, logger)
        config = _create("configuration", builder.create_builder_config, flavor, logger)
        caches = [config.create_timing_cache(timing.read_bytes()) for timing in timings]
        if any(item is None for item in caches):
            return False
        first, *others = caches
        done = [first.combine(item, ignore_mismatch=False) for item in others]
        if not all(done) or (merged := first.serialize()) is None:
            return False
        target.write_bytes(memoryview(merged))
    return True


def open_builder(trt: Any, flavor: flavors.Flavor, logger: Any) -> Any:  # noqa: ANN401 - NVIDIA's
    """Return the library's builder; raises StageFailure if it makes none, as without a driver or its option to parse alone."""
    return _open(trt.Builder, "create_network", flavor, logger)


def _open(kind: Any, method: str, flavor: flavors.Flavor, logger: Any) -> Any:  # noqa: ANN401 - NVIDIA's
    try:
        opened = kind(logger)
    except TypeError:  # the bindings' error for a null pointer of the library
        opened = None
    if not hasattr(opened, method):
        raise diagnosis.without_driver(flavor.title, logger.errors)
    return opened


def open_network(trt: Any, flavor: flavors.Flavor, logger: Any, builder: Any) -> Any:  # noqa: ANN401 - NVIDIA's
    """Return an empty, strongly typed network; raises StageFailure as `_create`."""
    # TensorRT 11 has no other networks, and may have no flag
    flags = trt.NetworkDefinitionCreationFlag
    typed = getattr(flags, "STRONGLY_TYPED", None) if flavor.typed_by_flag else None
    flag = 0 if typed is None else 1 << int(typed)
    return _create("network", lambda: builder.create_network(flag), flavor, logger)


def open_parser(trt: Any, flavor: flavors.Flavor, logger: Any, network: Any) -> Any:  # noqa: ANN401 - NVIDIA's
    """Return a parser that fills a network; raises StageFailure as `_create`."""
    return _create("parser", lambda: trt.OnnxParser(network, logger), flavor, logger)


def _create(what: str, make: Callable[[], Any], flavor: flavors.Flavor, logger: Any) -> Any:  # noqa: ANN401 - NVIDIA's
    """Return what a function of the library makes; raises StageFailure with the library's reason if it makes nothing."""
    try:
        made = make()
    except TypeError as error:
        if _NULL not in str(error):
            raise
        made = None
    if made is None:
        raise diagnosis.creates_nothing(what, flavor.title, logger.errors)
    return made


def parser_errors(parser: Any) -> tuple[ParserError, ...]:  # noqa: ANN401 - NVIDIA's parser
    """Return a parser's errors."""
    errors = (parser.get_error(index) for index in range(min(parser.num_errors, _ERRORS)))
    return tuple(
        ParserError(
            code=str(error.code()).rpartition(".")[2],  # `name` is a method in TensorRT 10.15
            node=error.node(),
            name=error.node_name(),
            operator=error.node_operator(),
            message=error.desc(),
        )
        for error in errors
    )


def _set_target(
    trt: Any,  # noqa: ANN401 - NVIDIA's module
    flavor: flavors.Flavor,
    config: Any,  # noqa: ANN401 - NVIDIA's
    compute_capability: str | None,
) -> list[str] | None:
    if not flavor.targets:
        return None
    requested = "CURRENT"
    if compute_capability is not None:
        requested = "SM" + compute_capability.replace(".", "")
    targets = trt.ComputeCapability.__members__
    if requested not in targets:
        names = [name[2:] for name in targets if name.startswith("SM")]
        return [f"{name[:-1]}.{name[-1]}" for name in names]
    config.num_compute_capabilities = 1
    config.set_compute_capability(targets[requested], 0)
    return None


def _find_unprofiled(network: Any, profiles: Sequence[TensorProfile]) -> list[str]:  # noqa: ANN401 - NVIDIA's
    sizes = {profile.name for profile in profiles}
    values = {profile.name for profile in profiles if profile.values}
    return [
        tensor.name
        for tensor in _inputs(network)
        if (tensor.is_shape_tensor and tensor.name not in values)
        or (any(size < 0 for size in tensor.shape) and tensor.name not in sizes)
    ]


def _set_profile(
    profile: Any,  # noqa: ANN401 - NVIDIA's
    network: Any,  # noqa: ANN401 - NVIDIA's
    config: Any,  # noqa: ANN401 - NVIDIA's
    profiles: Sequence[TensorProfile],
) -> bool:
    by_name = {item.name: item for item in profiles}
    dynamic = False
    for tensor in _inputs(network):
        if tensor.is_shape_tensor:
            profile.set_shape_input(tensor.name, *(by_name[tensor.name].values or ()))
            dynamic = True
        elif any(size < 0 for size in tensor.shape):
            sizes = by_name[tensor.name]
            profile.set_shape(tensor.name, sizes.min, sizes.opt, sizes.max)
            dynamic = True
    # returns an index, or -1; the logger gets the reason
    return not dynamic or config.add_optimization_profile(profile) >= 0


def _inputs(network: Any) -> list[Any]:  # noqa: ANN401 - NVIDIA's
    return [network.get_input(index) for index in range(network.num_inputs)]


def _timing_cache(flavor: flavors.Flavor, config: Any, path: Path) -> Any:  # noqa: ANN401 - NVIDIA's
    if not flavor.timing_cache:
        return None
    cache = config.create_timing_cache(path.read_bytes() if path.exists() else b"")
    if cache is None or not config.set_timing_cache(cache, ignore_mismatch=False):
        # of another device, driver or version: start with an empty one
        cache = config.create_timing_cache(b"")
        if cache is not None:
            config.set_timing_cache(cache, ignore_mismatch=False)
    return cache


def logger_of(trt: Any, sink: Any) -> Any:  # noqa: ANN401 - NVIDIA's
    """Return a logger of the library that keeps errors and writes to `sink`."""

    class Log(trt.ILogger):  # type: ignore[misc]  # the module is injected: its classes are Any
        """Keeps errors, and writes messages to the build log immediately: a crash may follow."""

        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.errors: list[str] = []
            self.remaining = _LOG_BYTES

        def log(self, severity: Any, message: str) -> None:  # noqa: ANN401 - NVIDIA's
            if severity > trt.ILogger.INFO:
                return
            if severity <= trt.ILogger.ERROR and len(self.errors) < _ERRORS:
                self.errors.append(message)
            line = f"{severity.name} {message}\n"
            if self.remaining > 0:
                self.remaining -= len(line)
                sink.write(line if self.remaining > 0 else "… later messages are dropped\n")
                sink.flush()

    return Log()


def _monitor(trt: Any, path: Path, span: tuple[float, float]) -> Any:  # noqa: ANN401 - NVIDIA's
    class ProgressMonitor(trt.IProgressMonitor):  # type: ignore[misc]  # as above
        """Maps nested phases with known step counts to one percentage that never decreases."""

        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)
            self.phases: dict[str, Phase] = {}
            self.reported = (-1, "")

        def phase_start(self, name: str, parent: str | None, steps: int) -> None:
            self.phases[name] = Phase(parent, max(1, steps))
            self.report(name)

        def step_complete(self, name: str, step: int) -> bool:
            self.phases[name].done = step + 1
            self.report(name)
            return True  # False would cancel the build

        def phase_finish(self, name: str) -> None:
            self.phases.pop(name, None)

        def report(self, name: str) -> None:
            begin, end = span
            now = max(self.reported[0], int(begin + (end - begin) * share(self.phases)))
            if (now, name) != self.reported:
                self.reported = (now, name)
                report_progress(path, now, name)

    return ProgressMonitor()


@dataclass
class Phase:
    """One active phase of a build."""

    parent: str | None
    steps: int
    done: int = 0


def share(phases: Mapping[str, Phase], parent: str | None = None) -> float:
    """Return how much of the phases below `parent` is done, 0 to 1; those of one level add up."""
    return min(
        1.0,
        sum(
            (phase.done + share(phases, name) * (phase.done < phase.steps)) / phase.steps
            for name, phase in phases.items()
            if phase.parent == parent
        ),
    )
