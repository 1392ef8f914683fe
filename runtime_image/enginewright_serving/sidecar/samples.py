"""Reads the artefact's golden samples within a sidecar's memory limit.

Small files are kept in memory. Large ones are memory-mapped, so that sending an input or comparing an
output uses only page cache, which the kernel can reclaim.
"""

import contextlib
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from enginewright_contract.base import canonical_json
from enginewright_contract.manifest import Manifest, TensorSpec
from enginewright_runtime.proof.parity.comparison import scales_of
from enginewright_runtime.proof.parity.parts import Parts, read_parts
from enginewright_runtime.session.arrays import map_arrays
from enginewright_runtime.session.datatypes import BF16, BYTES, DATATYPES, Datatype
from enginewright_runtime.session.samples import GoldenError, GoldenSample, in_memory, type_name
from numpy.typing import NDArray

_MOST: Final = 8  # samples that are run, selected evenly
_KEPT_BYTES: Final = 4 * 1024 * 1024
_BY_NAME: Final = {
    **{item.dtype.name: item for item in DATATYPES if item not in (BF16, BYTES)},
    "bfloat16": BF16,
    "string": BYTES,
}


@dataclass(frozen=True)
class Types:
    """Datatypes of the tensors, by name; of outputs, those that the protocol can carry."""

    inputs: dict[str, Datatype]
    outputs: dict[str, Datatype]


class GoldenSamples:
    """The golden samples of one artefact."""

    def __init__(self, artifact: Path, manifest: Manifest) -> None:
        """Read the names of the samples; raise OSError, ValueError or GoldenError if they are missing or invalid."""
        self._inputs = artifact / manifest.golden_inputs
        self._outputs = artifact / manifest.golden_outputs
        self.types = Types(_types(manifest.inputs), _types(manifest.outputs))
        path = manifest.golden_parts
        self.parts: Parts = read_parts(artifact / path) if path else {}
        if missing := [
            input_.name for input_ in manifest.inputs if input_.name not in self.types.inputs
        ]:
            raise GoldenError(f"input {missing[0]!r} is of a type that the protocol cannot carry")
        with np.load(self._inputs, allow_pickle=False) as arrays:
            names = list(dict.fromkeys(key.partition("/")[0] for key in arrays.files))
        if not names:
            raise GoldenError("there are no golden samples")
        step = max(1.0, len(names) / _MOST)
        self.names: list[str] = [
            names[int(index * step)] for index in range(min(len(names), _MOST))
        ]
        size = self._inputs.stat().st_size + self._outputs.stat().st_size
        self._kept: dict[str, GoldenSample] | None = {} if size <= _KEPT_BYTES else None
        self._digests: dict[str, str] = {}
        # read now, so that invalid samples are found at startup
        samples = [self.read(name) for name in self.names]
        self.largest_outputs = max(
            sum(array.nbytes for array in sample.expected.values()) for sample in samples
        )

    def read(self, name: str) -> GoldenSample:
        """Return a sample; raise OSError, ValueError or GoldenError if the file has gone or changed, or the sample is incomplete."""
        if self._kept is not None and name in self._kept:
            return self._kept[name]
        mapped = self._kept is None
        sample = GoldenSample(
            name,
            _arrays(self._inputs, name, self.types.inputs, mapped=mapped),
            _arrays(self._outputs, name, self.types.outputs, mapped=mapped),
        )
        if missing := sorted(self.types.inputs.keys() - sample.feeds.keys()):
            raise GoldenError(f"golden sample {name!r} has no input {missing[0]!r}")
        if not sample.expected:
            raise GoldenError(f"golden sample {name!r} has no outputs")
        if self._kept is not None:
            self._kept[name] = sample
        return sample

    def largest_values(self) -> dict[str, float]:
        """Return the largest expected magnitude of each output, over all samples."""
        kinds = {name: type_name(datatype) for name, datatype in self.types.outputs.items()}
        largest: dict[str, float] = {}
        for name in self.names:  # one at a time, since they may be large
            for output, scale in scales_of({name: self.read(name).expected}, kinds).items():
                largest[output] = max(scale, largest.get(output, 0.0))
        return largest

    def inputs_digest(self, sample: GoldenSample) -> str:
        """Return the digest of a sample's inputs, to find the same inputs of another revision."""
        if sample.name not in self._digests:
            self._digests[sample.name] = _digest(sample.feeds)
        return self._digests[sample.name]


def _digest(arrays: Mapping[str, NDArray[Any]]) -> str:
    digest = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        digest.update(canonical_json([name, array.dtype.str, array.shape]).encode())
        flat = np.ascontiguousarray(array).reshape(-1)
        if array.dtype.hasobject:  # strings
            digest.update(canonical_json([str(item) for item in flat]).encode())
        else:
            digest.update(flat.view(np.uint8).data)
    return digest.hexdigest()


def _arrays(
    path: Path, sample: str, types: dict[str, Datatype], *, mapped: bool
) -> dict[str, NDArray[Any]]:
    with contextlib.nullcontext(map_arrays(path)) if mapped else np.load(path) as arrays:
        return {
            name: in_memory(arrays[f"{sample}/{name}"], datatype)
            for name, datatype in types.items()
            if f"{sample}/{name}" in arrays
        }


def _types(specs: tuple[TensorSpec, ...]) -> dict[str, Datatype]:
    return {spec.name: _BY_NAME[spec.dtype] for spec in specs if spec.dtype in _BY_NAME}
