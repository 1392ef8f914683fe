"""What `enginewright plan` says of a change, against what the operator's plan then does: for every field.

The operator's own functions carry the change out; the source, which only a Job can read, gives the
bytes that it had, or others.
"""

from typing import Any

import pytest
from enginewright.api.inference_model import InferenceModelSpec
from enginewright.plan.resolve.resolve import Target, resolve
from enginewright_contract.keys import compute_prepared_key

from tests.support.plan_objects import DIGEST, accelerator_class, publish_model
from tests.support.plan_world import World
from tests.unit.test_cli_plan import PINNED, SOURCE, forecast_of, key_of, serving, steps

OTHER = "e" * 64
OTHER_URI = "https://models.example/other.onnx"
SECRET = {"secretRef": {"name": "reader"}}

# field of the spec -> values that differ from what serves
CHANGES: dict[str, list[Any]] = {
    "source": [
        {"uri": OTHER_URI},
        {"uri": OTHER_URI, "sha256": DIGEST},
        {"uri": OTHER_URI, "sha256": OTHER},
        {**SOURCE, "sha256": OTHER},
        {**SOURCE, **SECRET},
        SOURCE,
        PINNED,
        {**PINNED, **SECRET},
    ],
    "extensions": [[{"uri": OTHER_URI, "sha256": OTHER, "type": "CustomOperators"}]],
    "processing": [
        {"before": [{"uri": OTHER_URI}]},
        {"before": [{"uri": OTHER_URI, "sha256": OTHER}], "after": [{"uri": OTHER_URI, **SECRET}]},
    ],
    "targetOpset": [18],
    "precision": ["FP32", "FP8"],
    "quantization": [{"perChannel": False}, {"calibration": {"uri": OTHER_URI}}],
    "shapes": [[{"input": "x", "min": [1], "opt": [2], "max": [4]}]],
    "parity": [{"rtol": "0.1"}, {"samples": {"uri": OTHER_URI}}],
    "backends": [["cpu"], ["openvino"], ["tensorrt"]],
    "replicas": [3],
    "accelerators": [[{"class": "cpu"}], [{"class": "cpu", "replicas": 2}], [{"class": "gone"}]],
    "build": [{"timeout": "2h"}, {"resources": {"requests": {"cpu": "2"}}}],
    "fallback": [{"policy": "Allow"}],
    "rollout": [{"paused": True}, {"strategy": "Recreate"}],
    "serving": [{"maxQueue": 7}],
    "podTemplate": [{"priorityClassName": "high"}, {"serviceAccountName": "reader"}],
}
CASES = [(field, value) for field, values in CHANGES.items() for value in values]


def test_every_field_of_the_spec_is_changed() -> None:
    assert set(CHANGES) == {
        model_field.alias or name for name, model_field in InferenceModelSpec.model_fields.items()
    }


def bring_up(source: dict[str, str]) -> World:
    """Return a world in which the model serves, from that source."""
    world = World(accelerator_class("cpu", "cpu", "openvino"), source=source)
    world.spec["backends"] = ["cpu", "openvino"]
    world.settle()
    return world.job_succeeds(publish_model(key_of(world))).all_available()


def serves(world: World) -> list[tuple[str, str, int]]:
    """Return what the Deployments are."""
    return [
        (
            entry["metadata"]["name"],
            entry["metadata"]["labels"]["enginewright.dev/revision"],
            entry["spec"]["replicas"],
        )
        for entry in world.all("Deployment")
    ]


def comes_true(world: World, digest: str) -> bool:
    """Have the Job that runs end well; tell whether there was one."""
    jobs = [entry for entry in world.all("Job") if not entry.get("status", {}).get("conditions")]
    if not jobs:
        return False
    target = resolve(world.facts())
    assert isinstance(target, Target)
    world.job_succeeds(publish_model(compute_prepared_key(digest, target.recipe, {}), digest))
    return True


# fault: Commands | `plan` keeps a source that only a Job can read
@pytest.mark.parametrize("bytes_of", ["as before", "others"])
@pytest.mark.parametrize("source", [SOURCE, PINNED], ids=["unpinned", "pinned"])
@pytest.mark.parametrize(("field", "value"), CASES, ids=lambda item: str(item)[:60])
def test_predictions_come_true(
    field: str, value: Any, source: dict[str, str], bytes_of: str
) -> None:
    world = bring_up(source)
    before = serves(world)
    spec = {**world.spec, field: value}
    moved = field == "source" and value["uri"] == OTHER_URI
    digest = value.get("sha256") if field == "source" else None
    digest = digest or (OTHER if moved and bytes_of == "others" else DIGEST)
    plan = forecast_of(world, spec)
    world.edit(**{field: value})
    began = comes_true(world, digest)
    world.all_available()
    after = serves(world)
    assert began == any(plan_step.action == "make" for plan_step in steps(plan, "Job"))
    if plan.verdict in {"refused", "waits"}:
        assert plan.refusals
        assert after == before, "what serves goes on serving"
        return
    reported = {plan_step.name: plan_step for plan_step in steps(plan, "Deployment")}
    assert set(reported) == {name for name, _, _ in (*before, *after)}
    earlier = {name: rest for name, *rest in before}
    for name, revision, replicas in after:
        step = reported[name]
        same = earlier[name] == [revision, replicas]
        if step.action == "keep":
            assert same, step
        elif plan.revision is None:
            assert step.action == "change"
            assert not same or "unless the source is byte-identical" in step.message
        else:
            assert (step.action, same) == ("change", False)
    if plan.revision is not None and not spec.get("rollout", {}).get("paused"):
        assert {revision for _, revision, _ in after} == {plan.revision}
    if plan.verdict == "unchanged":
        assert (began, after) == (False, before)


# fault: Commands | `plan` keeps a source that only a Job can read | it uses a digest only from
#   the same address | before anything is applied
def test_another_address_is_another_model_until_it_is_read() -> None:
    """It was said to keep what serves, and then the other model was rolled out."""
    world = bring_up(SOURCE)
    plan = forecast_of(world, {**world.spec, "source": {"uri": OTHER_URI}})
    (job,) = steps(plan, "Job")
    (deployment,) = steps(plan, "Deployment")
    assert (job.action, job.key, plan.revision) == ("make", None, None)
    assert deployment.action == "change"
    assert deployment.message == (
        f"revision {plan.serving} → a new one, unless the source is byte-identical"
    )
    assert {difference.field: difference.after for difference in plan.rollout} == {
        "prepared model": "known once it is prepared",
        "model digest": "known once it is prepared",
    }


def test_assumed_source_is_printed() -> None:
    world = serving()
    (job,) = steps(forecast_of(world, {**world.spec, "targetOpset": 18}), "Job")
    assert job.message == "key valid if the source is unchanged"
    new = {"uri": OTHER_URI, "sha256": OTHER}
    (job,) = steps(forecast_of(world, {**world.spec, "source": new}), "Job")
    assert job.message == "key valid if the source is one file and matches its digest"


def test_a_status_of_an_earlier_spec_says_nothing_of_this_one() -> None:
    """Between an edit and the end of its Job the status tells what was prepared before."""
    world = bring_up(SOURCE)
    world.edit(source={"uri": OTHER_URI})
    plan = forecast_of(world, {**world.spec, "targetOpset": 18})
    (job,) = [step for step in steps(plan, "Job") if step.action == "make"]
    assert (job.key, plan.revision) == (None, None)
