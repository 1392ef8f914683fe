"""Which models use an engine: what their specs need, and what their stored revisions run."""

from typing import Any

from enginewright.api.inference_engine import InferenceEngine
from enginewright.manifests.labels import REVISION
from enginewright.observed.revisions import RevisionView, revision_view
from enginewright.plan.engines.engine import EngineUse, engine_use, users_of

from tests.support.plan_objects import ENGINE, NAMESPACE, PREPARED_KEY, engine_spec, make_object

OF_ENGINE = InferenceEngine.model_validate(
    make_object("InferenceEngine", ENGINE, NAMESPACE, spec=engine_spec())
)


def revision(name: str, engine_key: str | None, **data: Any) -> RevisionView:
    """Return a stored revision that runs an engine, or the prepared model."""
    a_class = {"name": "l4", "backend": "tensorrt", "image": "gpu:1", "engine_key": engine_key}
    content = {
        "prepared_key": PREPARED_KEY,
        "model_digest": "d" * 64,
        "classes": [a_class],
        "max_queue": 256,
        "store_claim": "store",
        **data,
    }
    stored = make_object("ControllerRevision", f"resnet-{name}", NAMESPACE, labels={REVISION: name})
    return revision_view({**stored, "revision": 1, "data": content})


def users(*uses: EngineUse) -> tuple[str, ...]:
    return users_of(OF_ENGINE, uses)


def test_model_uses_engines_of_its_spec_and_revisions() -> None:
    key = OF_ENGINE.spec.key
    needs = engine_use("resnet", [ENGINE], ())
    serves = engine_use("bert", (), (revision("old", key), revision("new", "f" * 64)), ["old"])
    another = engine_use("yolo", (), (revision("only", "f" * 64),), ["only"])
    prepared_only = engine_use("cpu", (), (revision("only", None),), ["only"])
    assert users(serves, needs, another, prepared_only) == ("bert", "resnet")
    assert users(another, prepared_only, engine_use("new", (), ())) == ()


def test_a_revision_that_can_be_rolled_back_to_counts_though_nothing_runs_it() -> None:
    stored = (revision("old", OF_ENGINE.spec.key), revision("new", "f" * 64))
    assert users(engine_use("resnet", (), stored, ["new"])) == ("resnet",)


def test_a_revision_that_is_not_known_may_run_any_engine() -> None:
    unreadable = revision("new", None, classes="of another version")
    assert unreadable.kept is None
    assert users(engine_use("resnet", (), (unreadable,))) == ("resnet",)
    assert users(engine_use("resnet", (), (), carried=["deleted-by-hand"])) == ("resnet",)


def test_the_name_of_an_engine_is_not_its_key() -> None:
    """An InferenceEngine of an earlier key under the same name is another engine."""
    assert users(EngineUse("resnet", keys=frozenset({ENGINE}))) == ()
    assert users(EngineUse("resnet", names=frozenset({OF_ENGINE.spec.key}))) == ()
