"""Content addresses: equal content, recipe and versions give equal keys, on every machine and in later releases.

Defaults are left out, so that a field added by a later release changes no key; tests pin the keys
of earlier releases. If the meaning of a key has to change, its version does too.
"""

import hashlib
from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel

from enginewright_contract.base import canonical_json
from enginewright_contract.task import EngineRecipe, Processing, Recipe

_VERSION: Final = 1


def compute_prepared_key(model_digest: str, recipe: Recipe, data: Mapping[str, str]) -> str:
    """Return the key of a prepared model: sha256 (hex) over the source's digest, recipe and `data`.

    `data` has the digests at the recipe's other addresses by name, in place of the addresses: equal content
    has one key.
    """
    return compute_prepared_keys(model_digest, recipe, data)[0]


def compute_prepared_keys(
    model_digest: str, recipe: Recipe, data: Mapping[str, str]
) -> tuple[str, ...]:
    """Return the key of a prepared model, and the one that earlier versions gave it, which its artefact keeps."""
    whole = content(recipe)
    variants = (_without_addresses(whole, data), whole)
    keys = (
        _key({"model_digest": model_digest, "recipe": variant, "data": dict(data)})
        for variant in variants
    )
    return tuple(dict.fromkeys(keys))


def _without_addresses(recipe: Mapping[str, Any], data: Mapping[str, str]) -> dict[str, Any]:
    """Return a recipe's content without the addresses of which `data`, or the recipe, has the digest."""
    kept = dict(recipe)
    if "samples" in data:
        kept.pop("samples_uri", None)
    if "calibration" in data and (quantization := kept.get("quantization")):
        calibration = _without_uri(quantization["calibration"])
        kept["quantization"] = quantization | {"calibration": calibration}
    processing = kept.get("processing")
    if processing and Processing(**processing).steps().keys() <= data.keys():
        del kept["processing"]  # the names of the steps say where they are
    if extensions := kept.get("extensions"):
        kept["extensions"] = [
            _without_uri(extension) if extension.get("sha256") else extension
            for extension in extensions
        ]
    return kept


def _without_uri(part: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in part.items() if name != "uri"}


def engine_key(prepared: str, recipe: EngineRecipe) -> str:
    """Return the key of an engine: sha256 (hex) over prepared key and recipe, with the device if known."""
    engine = content(recipe)
    if recipe.device:
        del engine["accelerator_class"]
    return _key({"prepared_key": prepared, "engine": engine})


def content(part: BaseModel) -> dict[str, Any]:
    """Return the fields of a part that enter a key: those that differ from their defaults."""
    return part.model_dump(mode="json", exclude_defaults=True)


def content_hash(*parts: object) -> str:
    """Return the sha256 (hex) of JSON values."""
    return sha256_text(canonical_json(parts))


def sha256_text(text: str) -> str:
    """Return the sha256 of `text`'s UTF-8 bytes in hex."""
    return hashlib.sha256(text.encode()).hexdigest()


def _key(body: Mapping[str, Any]) -> str:
    return sha256_text(canonical_json({"version": _VERSION, **body}))
