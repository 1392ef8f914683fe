"""Content addresses: equal content, recipe and versions give equal keys, on every machine."""

import hashlib
from collections.abc import Mapping

from enginewright.contract.base import canonical_json
from enginewright.contract.task import EngineRecipe, Recipe


def prepared_key(model_digest: str, recipe: Recipe, data: Mapping[str, str]) -> str:
    """Return the key of a prepared model: sha256 (hex) over model digest, recipe and data.

    Args:
        model_digest: of the source.
        recipe: how it is made.
        data: digests of what lies at the recipe's other addresses, by name: they may change too.
    """
    body = {
        "model_digest": model_digest,
        "recipe": recipe.model_dump(mode="json", exclude_none=True),
        "data": dict(data),
    }
    return sha256_text(canonical_json(body))


def engine_key(prepared: str, recipe: EngineRecipe) -> str:
    """Return the key of an engine: sha256 (hex) over the prepared model's key and the recipe."""
    body = {
        "prepared_key": prepared,
        "engine": recipe.model_dump(mode="json", exclude_none=True),
    }
    return sha256_text(canonical_json(body))


def sha256_text(text: str) -> str:
    """Return the sha256 of `text`'s UTF-8 bytes in hex."""
    return hashlib.sha256(text.encode()).hexdigest()
