"""The digest of the code that builds artefacts, so that changes of serving code rebuild nothing."""

import platform
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import enginewright_contract
from enginewright_contract.code import code_digest
from enginewright_contract.keys import content_hash

_CONTRACT: Final = Path(enginewright_contract.__file__).parent
_RUNTIME: Final = Path(__file__).parents[1]
_OURS: Final = "enginewright"


def pipeline_digest(versions: Mapping[str, Any]) -> str:
    """Return the sha256 (hex) of code, packages, libraries (`versions`), Python and libc that decide what Jobs build."""
    packages = {
        f"{distribution.name}=={distribution.version}"
        for distribution in metadata.distributions()
        if distribution.name != _OURS  # whose code counts, not its version
    }
    return content_hash(
        {
            "code": code_digest(_CONTRACT, _RUNTIME, documents=False),
            "packages": sorted(packages),
            "python": platform.python_version(),
            "machine": platform.machine(),
            "libc": platform.libc_ver(),
            "versions": dict(versions),
        }
    )


@cache
def own_pipeline() -> str:
    """Return the digest of this image's code for proofs of engines, whose keys have the libraries' versions."""
    return pipeline_digest({})
