"""Reads YAML by libyaml: PyYAML's own parser takes ten times as long for a rendered chart with its CRDs."""

from typing import Any

import yaml


def load_documents(text: str) -> list[Any]:
    """Return the documents of a text that are not empty."""
    return [item for item in yaml.load_all(text, yaml.CSafeLoader) if item]
