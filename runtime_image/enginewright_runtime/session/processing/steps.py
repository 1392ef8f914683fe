"""Steps as sessions on the CPU, in the process that only runs them."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import onnxruntime as ort
from enginewright_contract.signature import TensorText

from enginewright_runtime.core.failure import SessionError
from enginewright_runtime.graph.raw import graphs
from enginewright_runtime.session.arrays import Arrays
from enginewright_runtime.session.base import CPU_PROVIDER, FATAL_ONLY, SPINNING
from enginewright_runtime.session.datatypes import BY_ONNX
from enginewright_runtime.session.extensions.libraries import Libraries, of_model, register
from enginewright_runtime.session.processing.frames import StepFacts
from enginewright_runtime.session.processing.images import plain_png
from enginewright_runtime.session.signature import NodeArg

_DECODERS: Final = frozenset({"DecodeImage"})  # operators that expand compressed images


class StepError(Exception):
    """A step failed on its inputs."""

    def __init__(self, step: str, message: str) -> None:
        super().__init__(message)
        self.step = step


class LoadedSteps:
    """Loaded steps, by name, in their order."""

    def __init__(self, paths: Mapping[str, Path], libraries_of: Path) -> None:
        """Load .onnx files with a model's libraries of operators; raises SessionError, or StageFailure: ExtensionFailed."""
        libraries = of_model(libraries_of)
        self._sessions = {name: _load(name, path, libraries) for name, path in paths.items()}
        self.facts = {
            name: StepFacts(
                _texts(name, session.get_inputs()),
                _texts(name, session.get_outputs()),
                _images(paths[name]),
            )
            for name, session in self._sessions.items()
        }

    def run(self, names: Sequence[str], feeds: Arrays, outputs: Collection[str]) -> Arrays:
        """Run these steps one after another; return `outputs`; raises StepError, or MemoryError outside ONNX Runtime."""
        values = dict(feeds)
        produced: dict[str, Any] = {}
        for number, name in enumerate(names):
            session = self._sessions[name]
            later = {
                input_.name
                for one in names[number + 1 :]
                for input_ in self._sessions[one].get_inputs()
            }
            needed = [
                output.name
                for output in session.get_outputs()
                if output.name in later or output.name in outputs
            ]
            if not needed:
                continue
            inputs = {input_.name: values[input_.name] for input_ in session.get_inputs()}
            try:
                for image in self.facts[name].images:
                    if image in feeds:
                        inputs[image] = plain_png(inputs[image])
                arrays = session.run(needed, inputs)
            except MemoryError:
                raise
            except Exception as error:
                # ONNX Runtime's exceptions have no common base class but Exception
                raise StepError(name, str(error)) from error
            produced |= zip(needed, arrays, strict=True)
            values |= produced
        return {name: produced[name] for name in outputs}


def _load(name: str, path: Path, libraries: Libraries) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = FATAL_ONLY
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.enable_cpu_mem_arena = False  # which never releases the memory of a large image
    options.add_session_config_entry(SPINNING, "0")
    register(options, libraries)
    try:
        return ort.InferenceSession(str(path), options, providers=[CPU_PROVIDER])
    except Exception as error:
        # likewise
        raise SessionError(f"{name}: {error}") from error


def _texts(step: str, arguments: Sequence[NodeArg]) -> tuple[str, ...]:
    return tuple(_text(step, argument) for argument in arguments)


def _text(step: str, argument: NodeArg) -> str:
    datatype = BY_ONNX.get(argument.type)
    if datatype is None:
        raise SessionError(f"{step}: {argument.name!r} is a {argument.type}, not a tensor")
    sizes = (size if isinstance(size, int) and size >= 0 else -1 for size in argument.shape)
    return str(TensorText(argument.name, datatype.name, tuple(map(str, sizes))))


def _images(path: Path) -> tuple[str, ...]:
    model = graphs.parse(path)
    given = {item.name for item in model.graph.input}
    decoded: dict[str, None] = {}
    others: set[str] = {item.name for item in model.graph.output}
    for node in graphs.walk_nodes(model):
        if node.op_type in _DECODERS:
            decoded |= dict.fromkeys(node.input[:1])
        else:
            others.update(node.input)
    return tuple(name for name in decoded if name in given and name not in others)
