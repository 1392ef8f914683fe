"""What a collection keeps: every key that an object of the namespace names, in any version."""

from typing import Any, get_args

import pytest
from enginewright.api.inference_model_status import InferenceModelStatus
from enginewright.manifests.labels import MODEL
from enginewright.manifests.snapshot import ClassSnapshot, Revision, Snapshot
from enginewright.plan.store.collection import NamespaceObjects, NeededKeys, find_needed_keys
from enginewright_contract.base import Digest
from enginewright_contract.keys import sha256_text
from enginewright_contract.task import TASK_VARIABLE, EngineRecipe, EngineTask, ServeTask
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from tests.support.plan_objects import MODEL as NAME
from tests.support.plan_objects import NAMESPACE, Json, engine_spec, make_object

SOURCE: Json = {"source": {"uri": "https://models.example/m.onnx"}}
KEYS = st.integers(0, 40).map(lambda number: sha256_text(f"key {number}"))
NO_KEY = sha256_text("a digest")


def make_prepared(key: str) -> Json:
    counts = {"opset": 17, "irVersion": 8, "nodes": 1, "sizeBytes": 1}
    return {"inputsHash": NO_KEY, "key": key, "modelDigest": NO_KEY, **counts}


def model(*keys: str) -> Json:
    """Return a model whose status names up to four keys, each in another field."""
    status: Json = {"prepared": make_prepared(keys[0])} if keys else {}
    if len(keys) > 1:
        serving = {"revision": "r", "preparedKey": keys[1], "modelDigest": NO_KEY, "backend": "cpu"}
        status["serving"] = serving | (
            {"prepared": make_prepared(keys[2])} if len(keys) > 2 else {}
        )
    if len(keys) > 3:
        rejected = {"backend": "openvino", "reason": "BackendCrashed"}
        status["rejectedBackends"] = [{**rejected, "prepared": make_prepared(keys[3])}]
    return make_object("InferenceModel", NAME, NAMESPACE, spec=SOURCE, status=status)


def revision(prepared_key: str, *engines: str, **data: Any) -> Json:
    snapshot = Snapshot(
        prepared_key=prepared_key,
        model_digest=NO_KEY,
        classes=tuple(
            ClassSnapshot(name=f"c{number}", backend="tensorrt", image="i", engine_key=key)
            for number, key in enumerate(engines or (None,))
        ),
        max_queue=1,
        store_claim="store",
    )
    written = Revision(name="r", snapshot=snapshot).data() | data
    return make_object("ControllerRevision", "r", NAMESPACE, data=written)


def pods(kind: str, task: str, **status: Any) -> Json:
    container = {"name": "c", "env": [{"name": TASK_VARIABLE, "value": task}]}
    spec = {"template": {"spec": {"initContainers": [container], "containers": []}}}
    return make_object(kind, "o", NAMESPACE, labels={MODEL: NAME}, spec=spec, status=status)


def serves(prepared_key: str, engine: str, stable: str) -> Json:
    task = ServeTask(
        model=NAME,
        revision="r",
        prepared_key=prepared_key,
        engine_key=engine,
        stable_key=stable,
        backend="tensorrt",
    )
    return pods("Deployment", task.to_json())


def builds(key: str, prepared_key: str, **status: Any) -> Json:
    recipe = EngineRecipe(
        backend="tensorrt", backend_version="10", ort_version="1", accelerator_class="l4"
    )
    task = EngineTask(job="o", engine_key=key, prepared_key=prepared_key, recipe=recipe)
    return pods("Job", task.to_json(), **status)


def engine(key: str, prepared_key: str) -> Json:
    spec = {**engine_spec(), "key": key, "preparedKey": prepared_key}
    return make_object("InferenceEngine", "e", NAMESPACE, spec=spec)


@given(
    models=st.lists(st.lists(KEYS, max_size=4), max_size=4),
    revisions=st.lists(st.lists(KEYS, min_size=1, max_size=4), max_size=6),
    serving=st.lists(st.tuples(KEYS, KEYS, KEYS), max_size=3),
    building=st.lists(st.tuples(KEYS, KEYS), max_size=3),
    engines=st.lists(st.tuples(KEYS, KEYS), max_size=3),
)
def test_nothing_that_a_fleet_names_is_missing_and_nothing_else_is_kept(
    models: list[list[str]],
    revisions: list[list[str]],
    serving: list[tuple[str, str, str]],
    building: list[tuple[str, str]],
    engines: list[tuple[str, str]],
) -> None:
    needed = find_needed_keys(
        NamespaceObjects(
            models=tuple(model(*keys) for keys in models),
            engines=tuple(engine(*keys) for keys in engines),
            revisions=tuple(revision(*keys) for keys in revisions),
            deployments=tuple(serves(*keys) for keys in serving),
            jobs=tuple(builds(*keys) for keys in building),
        )
    )
    named = {
        key
        for part in (models, revisions, serving, building, engines)
        for one in part
        for key in one
    }
    assert needed.unreadable == ()
    assert needed.keys == named
    assert needed.beginnings == tuple(sorted({key[:16] for key in named}))


A, B = sha256_text("a"), sha256_text("b")


def test_a_job_that_has_ended_needs_nothing() -> None:
    complete = {"conditions": [{"type": "Complete", "status": "True"}]}
    assert find_needed_keys(NamespaceObjects(jobs=(builds(A, B, **complete),))).keys == set()


def test_fields_of_a_newer_version_count() -> None:
    newer = revision(A, fallback={"interim": [{"interim_engine_key": B}]})
    assert find_needed_keys(NamespaceObjects(revisions=(newer,))).keys == {A, B}
    status = {"interimEngineKey": B, "notAKeyAtAll": A, "key": "short"}
    listed = NamespaceObjects(
        models=(make_object("InferenceModel", NAME, NAMESPACE, spec=SOURCE, status=status),)
    )
    assert find_needed_keys(listed).keys == {B}


@pytest.mark.parametrize(
    ("kind", "obj", "why"),
    [
        (
            "models",
            make_object("InferenceModel", NAME, NAMESPACE, spec={"source": 7}),
            "spec.source",
        ),
        ("engines", make_object("InferenceEngine", "e", NAMESPACE, spec={"key": 7}), "spec"),
        ("revisions", revision(A, classes="of another version"), "classes"),
        ("revisions", make_object("ControllerRevision", "r", NAMESPACE, data=[]), "not an object"),
        ("deployments", pods("Deployment", "{"), "its pods name no artefact"),
    ],
)
def test_unreadable_object_is_named(kind: str, obj: Json, why: str) -> None:
    (message,) = find_needed_keys(NamespaceObjects(**{kind: (obj,)})).unreadable
    assert message.name == f"{obj['kind']} {obj['metadata']['name']}"
    assert why in message.why


def test_two_keys_with_one_beginning_are_kept_by_it() -> None:
    keys = frozenset({"a" * 16 + "1" * 48, "a" * 16 + "2" * 48})
    assert NeededKeys(keys).beginnings == ("a" * 16,)


def _digests(part: type[BaseModel], seen: set[type[BaseModel]]) -> set[str]:
    """Return the names of all fields of the type `Digest`, at any depth."""
    if part in seen:
        return set()
    seen.add(part)
    (limit,) = get_args(Digest)[1].metadata
    digests = set[str]()
    for name, model_field in part.model_fields.items():
        if model_field.annotation is str and limit in model_field.metadata:
            digests.add(name)
        stack = [model_field.annotation]
        while stack:
            one = stack.pop()
            stack += get_args(one)
            if isinstance(one, type) and issubclass(one, BaseModel):
                digests |= _digests(one, seen)
    return digests


def test_a_new_field_of_a_status_is_named_so_that_a_collection_finds_it() -> None:
    """If it holds the key of an artefact, its name must end with "key"; else it belongs into this list."""
    digests = _digests(InferenceModelStatus, set())
    assert {digest for digest in digests if not digest.endswith("key")} == {
        "digest",
        "inputs_hash",
        "model_digest",
        "record_hash",
        "sha256",
        "shared_hash",
        "spec_hash",
    }
    assert {"key", "prepared_key"} <= digests
