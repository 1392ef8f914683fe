"""InferenceEngines that nothing needs: recorded since when, removed in time, and never one that is needed."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from enginewright.api.inference_engine import InferenceEngine
from enginewright.manifests.labels import REQUESTED_BY
from enginewright.observed.jobs import job_view
from enginewright.plan.engines.build import BuildFacts
from enginewright.plan.engines.engine import EnginePlan, plan_engine
from enginewright.plan.types import CollectionConfig, Config, StoreConfig

from tests.support.plan_objects import ENGINE, NAMESPACE, Json, engine_spec, make_object
from tests.support.plan_world import CONFIG

NOW = datetime(2026, 3, 1, tzinfo=UTC)
DAY = timedelta(days=1)


def engine(status: Mapping[str, Any] | None = None, **metadata: Any) -> InferenceEngine:
    obj = make_object(
        "InferenceEngine", ENGINE, NAMESPACE, spec=engine_spec(), status=dict(status or {})
    )
    obj["metadata"] |= {"uid": "e", "annotations": {REQUESTED_BY: "resnet"}, **metadata}
    return InferenceEngine.model_validate(obj)


def config(**gc: Any) -> Config:
    store = StoreConfig("store", "20Gi", "ReadWriteMany", None, gc=CollectionConfig(**gc))
    return Config(**{**vars(CONFIG), "store": store})


def plan_removal(
    subject: InferenceEngine, now: datetime = NOW, gc: Mapping[str, Any] | None = None, **needs: Any
) -> EnginePlan:
    return plan_engine(BuildFacts(subject, config(**(gc or {})), now, **needs))


READY = {
    "type": "Ready",
    "status": "False",
    "reason": "NotRequested",
    "message": "",
    "lastTransitionTime": NOW,
}


def make_unused(since: datetime, **metadata: Any) -> InferenceEngine:
    return engine({"conditions": [READY], "unusedSince": since}, **metadata)


def test_since_when_is_recorded_and_kept() -> None:
    first = plan_removal(engine({"conditions": [READY]}))
    assert first.status["unusedSince"] == "2026-03-01T00:00:00Z"
    assert first.requeue_after == 30 * DAY.total_seconds()
    later = plan_removal(make_unused(NOW), NOW + 12 * DAY)
    assert later.status["unusedSince"] == "2026-03-01T00:00:00Z", "also by another process"
    assert later.requeue_after == 18 * DAY.total_seconds()
    assert later.removed is None


def test_it_is_removed_in_time() -> None:
    before = plan_removal(make_unused(NOW), NOW + 30 * DAY - timedelta(seconds=1))
    assert before.removed is None
    plan = plan_removal(make_unused(NOW), NOW + 30 * DAY)
    assert plan.removed is not None
    assert (plan.removed.type, plan.removed.reason) == ("Normal", "EngineRemoved")
    assert "since 2026-03-01 00:00 UTC" in plan.removed.message
    assert (plan.apply, plan.delete) == ((), ())


def test_the_time_begins_again_once_it_was_needed() -> None:
    needed = plan_removal(make_unused(NOW - 40 * DAY), users=("resnet",))
    assert needed.removed is None
    assert "unusedSince" not in needed.status
    assert plan_removal(engine(needed.status)).status["unusedSince"] == "2026-03-01T00:00:00Z"


@pytest.mark.parametrize("gc", [{"unused_for": None}, {"enabled": False}, {"dry_run": True}])
def test_nothing_is_removed_where_the_settings_say_so(gc: dict[str, Any]) -> None:
    plan = plan_removal(make_unused(NOW - 4000 * DAY), gc=gc)
    assert plan.removed is None
    assert plan.status["unusedSince"]


def test_a_users_own_engine_stays() -> None:
    plan = plan_removal(make_unused(NOW - 40 * DAY, annotations={}))
    assert plan.removed is None
    assert "unusedSince" not in plan.status


def test_a_model_has_time_to_record_the_engine_that_it_has_created() -> None:
    new = engine(creationTimestamp=NOW - timedelta(minutes=1))
    assert plan_removal(new).status == {}
    left = engine(creationTimestamp=NOW - timedelta(hours=1))
    assert plan_removal(left).status["unusedSince"], "its model was deleted before it could"


def job(**status: Any) -> Json:
    return make_object("Job", "j", NAMESPACE, status=status)


ENDED = {"conditions": [{"type": "Complete", "status": "True"}]}


@pytest.mark.parametrize(
    ("needs", "is_needed"),
    [
        ({"users": ("resnet",)}, True),
        ({"tried_again": True}, True),
        ({"jobs": (job_view(job()),)}, True),
        ({"jobs": (job_view(job(**ENDED)),)}, False),
    ],
)
def test_users(needs: dict[str, Any], is_needed: bool) -> None:
    plan = plan_removal(make_unused(NOW), NOW + DAY, **needs)
    assert ("unusedSince" in plan.status) != is_needed
