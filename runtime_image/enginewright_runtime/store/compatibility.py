"""Detects artefacts of earlier versions whose manifests lack what verification needs.

Earlier manifests did not record which outputs vary between runs, and outputs that differed were not
compared. Now all are compared, by distribution if the manifest has it, so such an artefact of a model
with random operators would fail in every new pod under the same key.
"""

from typing import BinaryIO, Final

from enginewright_contract.manifest import Manifest

# Substrings of RandomNormal, RandomNormalLike, RandomUniform, RandomUniformLike, Multinomial, Bernoulli
_RANDOM: Final = (b"RandomNormal", b"RandomUniform", b"Multinomial", b"Bernoulli")
_CHUNK: Final = 4 << 20  # bytes
_OVERLAP: Final = max(map(len, _RANDOM)) - 1


def lacks_distributions(manifest: Manifest, model: BinaryIO) -> bool:
    """Return whether an artefact predates distributions of outputs and may have random ones.

    The model is searched, not parsed, which could need more memory than a container that only copies has.

    Args:
        manifest: of the artefact.
        model: its .onnx file.
    """
    if manifest.varying is not None:
        return False
    end = b""
    while chunk := model.read(_CHUNK):
        text = end + chunk
        if any(name in text for name in _RANDOM):
            return True
        end = text[-_OVERLAP:]
    return False
