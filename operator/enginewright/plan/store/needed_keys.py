"""What a collection must keep: everything that the objects of the store's namespace name.

One object that cannot be read may name anything, so then nothing may be removed.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from enginewright_contract.collection import KEPT_CHARACTERS
from pydantic import ValidationError

from enginewright.api.inference_engine import InferenceEngine
from enginewright.api.inference_model import InferenceModel
from enginewright.manifests.labels import MODEL
from enginewright.manifests.snapshot import Revision
from enginewright.observed.artifact_keys import keys_in, keys_of_pods
from enginewright.observed.base import Json, status
from enginewright.observed.jobs import job_view


@dataclass(frozen=True)
class NamespaceObjects:
    """All objects of a namespace that may need artefacts, as the API server has just listed them."""

    models: tuple[Json, ...] = ()
    engines: tuple[Json, ...] = ()
    revisions: tuple[Json, ...] = ()  # ControllerRevisions
    deployments: tuple[Json, ...] = ()
    jobs: tuple[Json, ...] = ()


@dataclass(frozen=True)
class Unreadable:
    """An object that may need any artefact."""

    obj: Json
    why: str

    @property
    def name(self) -> str:
        """Return its kind and name."""
        return f"{self.obj['kind']} {self.obj['metadata']['name']}"


@dataclass(frozen=True)
class NeededKeys:
    """The keys of all artefacts that are needed."""

    keys: frozenset[str]
    unreadable: tuple[Unreadable, ...] = ()

    @property
    def beginnings(self) -> tuple[str, ...]:
        """Return the beginnings of the keys, as a task has them."""
        return tuple(sorted({each[:KEPT_CHARACTERS] for each in self.keys}))


def needed_keys(listed: NamespaceObjects) -> NeededKeys:
    """Return the keys that are needed.

    Models name what their specs need, what serves, and what their rejected backends would serve;
    revisions what a model may return to; Deployments and Jobs what their pods read or write.
    """
    keys = (
        *(keys_in(status(each)) for each in listed.models),
        *(keys_in(each.get("spec")) for each in listed.engines),
        *(keys_in(each.get("data")) for each in listed.revisions),
        *(keys_of_pods(each) for each in listed.deployments),
        *(keys_of_pods(each) for each in listed.jobs if not job_view(each).ended),
    )
    return NeededKeys(
        frozenset().union(*keys),
        (
            *_unreadable(listed.models, InferenceModel.model_validate),
            *_unreadable(listed.engines, InferenceEngine.model_validate),
            *_unreadable(listed.revisions, Revision.read),
            *_unreadable(listed.deployments, _read_deployment),
        ),
    )


def _unreadable(objects: Iterable[Json], read: Callable[[Json], Any]) -> Iterable[Unreadable]:
    for each in objects:
        try:
            read(each)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            field = ".".join(str(step) for step in first["loc"])
            yield Unreadable(each, f"{field}: {first['msg']}")
        except ValueError as error:
            yield Unreadable(each, str(error))


def _read_deployment(obj: Json) -> None:
    labels = obj["metadata"].get("labels") or {}
    if MODEL in labels and not keys_of_pods(obj):
        raise ValueError("its pods name no artefact")
