"""How serving pods address the files of artefacts in the cache of their node, and who may."""

from typing import Final

from enginewright_contract.keys import sha256_text
from enginewright_contract.manifest import Manifest

CACHE_PORT: Final = 8080


def scope(manifest: Manifest) -> str:
    """Return the part of the cache that holds an artefact's files, which only readers of its manifest know."""
    return sha256_text(manifest.to_json())


def file_path(scope: str, sha256: str) -> str:
    """Return the path of a file's URL."""
    return f"/files/{scope}/{sha256}"
