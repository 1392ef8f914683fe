"""The manifest to apply: its InferenceModels and AcceleratorClasses."""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml
from enginewright.api.accelerator_class import AcceleratorClass
from enginewright.api.inference_model import InferenceModel

from enginewright_cli.plan.validation import problems
from enginewright_cli.reporting import CommandError, unreadable

_STDIN: Final = "-"
_PLANNED: Final = (InferenceModel.kind, AcceleratorClass.kind)
_TIMESTAMP: Final = "tag:yaml.org,2002:timestamp"


class _Loader(yaml.SafeLoader):
    """YAML as kubectl converts it to JSON: an unquoted date is a string."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != _TIMESTAMP]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


@dataclass(frozen=True)
class Applied:
    """One InferenceModel or AcceleratorClass of the manifest."""

    body: Mapping[str, Any]
    problems: tuple[str, ...]  # why the API server would reject it

    @property
    def kind(self) -> str:
        """Return its kind."""
        return str(self.body["kind"])

    @property
    def name(self) -> str:
        """Return its name; "" without metadata."""
        metadata = self.body.get("metadata")
        return str(metadata.get("name")) if isinstance(metadata, Mapping) else ""

    @property
    def namespace(self) -> str | None:
        """Return the namespace that it sets, if any."""
        metadata = self.body.get("metadata")
        namespace = metadata.get("namespace") if isinstance(metadata, Mapping) else None
        return (
            None if namespace is None else str(namespace)
        )  # validation rejects a number by its type


@dataclass(frozen=True)
class AppliedManifest:
    """The objects of a manifest, by kind."""

    models: tuple[Applied, ...]
    classes: tuple[Applied, ...]
    others: tuple[str, ...]  # kinds that are not planned


def read(file: str) -> AppliedManifest:
    """Read a file, or standard input for "-". Raises CommandError."""
    objects = read_objects(file)
    ours = [
        Applied(object_, tuple(problems(object_)))
        for object_ in objects
        if str(object_["kind"]) in _PLANNED
    ]
    models = tuple(applied for applied in ours if applied.kind == InferenceModel.kind)
    kinds = dict.fromkeys(str(object_["kind"]) for object_ in objects)
    others = tuple(kind for kind in kinds if kind not in _PLANNED)
    if not models:
        instead = f", but {', '.join(others)}" if others else ""
        raise CommandError(f"{file} contains no InferenceModel{instead}")
    classes = tuple(applied for applied in ours if applied.kind == AcceleratorClass.kind)
    return AppliedManifest(models, classes, others)


def read_objects(file: str) -> list[Mapping[str, Any]]:
    """Return the objects in a file, those of a List too; standard input for "-". Raises CommandError."""
    try:
        text = sys.stdin.read() if file == _STDIN else Path(file).read_text(encoding="utf-8")
        documents = [item for item in yaml.load_all(text, _Loader) if item is not None]
        return list(_objects(file, documents))
    except RecursionError:
        raise CommandError(f"{file} is nested too deeply") from None
    except OSError as error:
        raise unreadable(Path(file), error) from None
    except UnicodeDecodeError:
        raise CommandError(f"{file} is not UTF-8 text") from None
    except yaml.YAMLError as error:
        raise CommandError(f"{file} is not valid YAML: {' '.join(str(error).split())}") from None


def _objects(file: str, documents: list[Any]) -> Iterator[Mapping[str, Any]]:
    for number, document in enumerate(documents, 1):
        if not isinstance(document, Mapping) or "kind" not in document:
            raise CommandError(
                f"{file}: document {number} is not a Kubernetes object: it has no kind"
            )
        if str(document["kind"]) == "List":
            items = document.get("items") or []
            if not isinstance(items, list):
                raise CommandError(f"{file}: document {number}: items of a List must be a list")
            yield from _objects(file, items)
        else:
            yield document
