"""The signature of a prepared model: its inputs and outputs as every pod that serves it reports them.

ONNX Runtime infers sizes of outputs that the model does not declare. It infers more with graph
optimizations, which differ between backends and versions, so the model is loaded without them.
"""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Final, TypeAlias

import onnxruntime as ort
from enginewright_contract.images import COMPILED_BACKENDS
from enginewright_contract.manifest import TensorSpec
from enginewright_contract.signature import PublishedSignature
from enginewright_contract.task import Recipe

from enginewright_runtime.core.failure import SessionError, StageFailure
from enginewright_runtime.core.handoff import Validated
from enginewright_runtime.core.isolation import Call, Limits
from enginewright_runtime.session.datatypes import DATATYPES
from enginewright_runtime.session.reference import load_reference
from enginewright_runtime.session.samples import type_name
from enginewright_runtime.session.signature import (
    Argument,
    NodeArg,
    ProfileError,
    SignatureError,
    read_signature,
)

_log: Final = logging.getLogger(__name__)
_ONNX_NAMES: Final = {type_name(datatype): datatype.onnx for datatype in DATATYPES}


Interface: TypeAlias = tuple[tuple[Argument, ...], tuple[Argument, ...]]  # inputs and outputs


def signature_of(model: Path, validated: Validated, recipe: Recipe) -> PublishedSignature | None:
    """Return the signature of the model at `model`, or None if it cannot be served."""
    # an engine accepts only the sizes that it is built for
    compiled = recipe.backend in COMPILED_BACKENDS
    profiles = validated.profiles if compiled else recipe.shapes
    try:
        return read_signature(*_interface(model, validated), (profiles,)).publish()
    except (SignatureError, ProfileError) as error:
        _log.warning("the model has no signature: %s", error)
        return None


def load(model: Path) -> Interface:
    """Return the inputs and outputs of a session; raises SessionError. Called in a child process."""
    options = ort.SessionOptions()
    options.enable_cpu_mem_arena = False
    options.add_session_config_entry("session.disable_prepacking", "1")
    session = load_reference(model, "DISABLE", options)
    return _read_arguments(session.get_inputs()), _read_arguments(session.get_outputs())


def _interface(model: Path, validated: Validated) -> Interface:
    """Return a session's inputs and outputs, or the declared ones if only other backends load the model."""
    try:
        return Call(load, "reading the model's inputs and outputs", Limits.of_model()).run(model)
    except (SessionError, StageFailure) as error:
        _log.info("the sizes of outputs are those that the model declares: %s", error)
        return _declare_arguments(validated.inputs), _declare_arguments(validated.outputs)


def _read_arguments(arguments: Sequence[NodeArg]) -> tuple[Argument, ...]:
    return tuple(
        Argument(argument.name, argument.type, list(argument.shape)) for argument in arguments
    )


def _declare_arguments(specs: Sequence[TensorSpec]) -> tuple[Argument, ...]:
    return tuple(
        Argument(spec.name, _ONNX_NAMES.get(spec.dtype, spec.dtype), list(spec.shape))
        for spec in specs
    )
