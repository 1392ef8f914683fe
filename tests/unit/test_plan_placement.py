"""Where Jobs run: asked for by chart and model, chosen by the image, and no reason to make anything again."""

from dataclasses import replace
from typing import Any, Final

import pytest
from enginewright.api.pods import JobTemplate
from enginewright.manifests.probe_job import probe_job
from enginewright_contract.processors import Processor

from tests.support.plan_objects import CPU_IMAGE, MODEL, RTX_IMAGE, node
from tests.support.plan_world import World
from tests.support.simulation import report_end

TEMPLATE: dict[str, Any] = {
    "labels": {"team": "vision", "kueue.x-k8s.io/queue-name": "builds"},
    "annotations": {"note": "hello"},
    "nodeSelector": {"pool": "builds"},
    "tolerations": [{"key": "builds", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {"x": "y"}},
    "imagePullSecrets": [{"name": "mine"}],
    "runtimeClassName": "gvisor",
    "priorityClassName": "low",
}
UNSCHEDULED: dict[str, Any] = {
    "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]
}


def prepare_job(**build: Any) -> dict[str, Any]:
    return World(build=build).settle().job()


def with_defaults(world: World, **template: Any) -> World:
    world.config = replace(world.config, jobs=JobTemplate.model_validate(template))
    return world


def is_placed(job: dict[str, Any]) -> None:
    spec = job["spec"]["template"]["spec"]
    assert spec["nodeSelector"].items() >= {"pool": "builds"}.items()
    assert {"key": "builds", "operator": "Exists"} in spec["tolerations"]
    assert spec["affinity"] == {"nodeAffinity": {"x": "y"}}
    assert {"name": "mine"} in spec["imagePullSecrets"]
    assert spec["runtimeClassName"] == "gvisor"
    assert spec["priorityClassName"] == "low"
    for metadata in (job["metadata"], job["spec"]["template"]["metadata"]):
        assert metadata["labels"]["team"] == "vision"
        assert metadata["labels"]["app.kubernetes.io/managed-by"] == "enginewright"
        assert metadata["annotations"]["note"] == "hello"


def test_a_model_places_its_jobs() -> None:
    is_placed(prepare_job(podTemplate=TEMPLATE))
    world = World(build={"podTemplate": TEMPLATE}).has_gpus(aheadOfTime=False).settle()
    engine = world.job_succeeds().the("InferenceEngine")
    built = World.of_engine()
    built.spec["podTemplate"] = engine["spec"]["podTemplate"]
    is_placed(built.settle().job())
    is_placed(built.misses().job())
    of_class = built.job()["spec"]["template"]["spec"]["nodeSelector"]
    assert of_class["nvidia.com/gpu.product"] == "NVIDIA-L4"


def test_the_chart_places_all_jobs_and_a_model_overrides_it() -> None:
    is_placed(with_defaults(World(), **TEMPLATE).settle().job())
    own = {"nodeSelector": {"pool": "mine", "zone": "a"}, "priorityClassName": "high"}
    world = with_defaults(World(build={"podTemplate": own}), **TEMPLATE).settle()
    spec = world.job()["spec"]["template"]["spec"]
    assert spec["nodeSelector"] == {"pool": "mine", "zone": "a"}
    assert spec["priorityClassName"] == "high"
    assert spec["runtimeClassName"] == "gvisor"


def test_the_chart_places_probes() -> None:
    template = JobTemplate.model_validate(TEMPLATE)
    is_placed(
        probe_job(
            "enginewright",
            CPU_IMAGE,
            1,
            pull_policy="Always",
            image_pull_secrets=(),
            template=template,
        )
    )


def test_a_queue_of_kueue_stands_on_the_job_and_not_on_its_pods() -> None:
    job = prepare_job(podTemplate=TEMPLATE)
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "builds"
    assert "kueue.x-k8s.io/queue-name" not in job["spec"]["template"]["metadata"]["labels"]


# event: Jobs | Kueue suspends or preempts a Job | the previous revision | `Queued`, with the
#   queue's name
@pytest.mark.parametrize("queue", ["builds", None])
def test_a_suspended_job_waits_and_fails_nothing(queue: str | None) -> None:
    labels = {"kueue.x-k8s.io/queue-name": queue} if queue else {}
    world = World(build={"podTemplate": {"labels": labels}}).settle()
    # as when a Job of a higher priority preempts it
    world.job_pod(initContainerStatuses=[report_end("fetch", code=143)])
    world.job()["spec"]["suspend"] = True
    world.settle()
    assert world.conditions()["Ready"] == ("False", "Queued")
    assert world.conditions()["Stalled"][0] == "False"
    waits = f"the queue {queue} of Kueue admits it" if queue else "it is resumed"
    assert waits in world.message()
    assert "failure" not in world.status["preparation"]
    assert {event.type for event in world.events} == {"Normal"}
    world.job()["spec"]["suspend"] = False
    assert world.job_succeeds().status["prepared"]


def test_a_suspended_engine_job_waits_and_fails_nothing() -> None:
    world = World.of_engine().settle()
    for _ in range(2):
        world.job()["spec"]["suspend"] = True
        world.settle()
        assert world.conditions()["Ready"] == ("False", "Queued")
        assert "suspended" in world.message()
        if len(world.made) == 1:
            world.job()["spec"]["suspend"] = False
            world.misses()


# event: Jobs | the placement of Jobs changes | all pods, and Jobs with a started pod; other Jobs
#   are replaced | nothing
def test_another_placement_replaces_no_started_job() -> None:
    world = World().settle().stage_runs("convert")
    before = world.job()
    world.edit(build={"podTemplate": TEMPLATE})
    assert world.job() == before
    world.job_succeeds().all_available()
    revision = world.status["revision"]
    world.edit(build={"podTemplate": {"priorityClassName": "high"}})
    assert world.status["revision"] == revision
    assert len(world.all("Job")) == 1
    assert world.conditions()["Ready"] == ("True", "Serving")


# event: Jobs | the placement of Jobs changes
@pytest.mark.parametrize("state", ["serving", "being prepared", "engine being built"])
def test_another_default_priority_restarts_and_rebuilds_nothing(state: str) -> None:
    if state == "serving":
        world = engine_wanted().engine_built().all_available()
    elif state == "being prepared":
        world = World().settle().stage_runs("convert")
    else:
        world = World.of_engine().settle().misses().stage_runs("build", "engine")
    writes = world.kube.writes
    with_defaults(world, priorityClassName="enginewright-jobs").settle()
    assert world.kube.writes == writes


def test_only_jobs_have_the_default_priority() -> None:
    world = with_defaults(World(), priorityClassName="enginewright-jobs").has_gpus().settle()
    spec = world.job()["spec"]["template"]["spec"]
    assert spec["priorityClassName"] == "enginewright-jobs"
    world.job_succeeds()
    (engine,) = world.all("InferenceEngine")
    assert engine["spec"]["podTemplate"]["priorityClassName"] == "enginewright-jobs"
    world.engine_built().all_available()
    for entry in world.all("Deployment"):
        assert "priorityClassName" not in entry["spec"]["template"]["spec"]


# event: Jobs | the placement of Jobs changes
def test_a_job_that_no_node_takes_is_replaced_by_one_with_the_new_placement() -> None:
    world = World(build={"podTemplate": {"nodeSelector": {"pool": "gone"}}}).settle()
    first = world.job()["metadata"]["name"]
    world.job_pod(**UNSCHEDULED)
    world.settle().later(hours=1)
    assert world.job()["metadata"]["name"] == first
    world.edit(build={"podTemplate": {"nodeSelector": {"pool": "builds"}}})
    assert len(world.all("Job")) == 1
    assert world.job()["metadata"]["name"] != first
    assert world.job()["spec"]["template"]["spec"]["nodeSelector"] == {"pool": "builds"}
    world.edit(build={})
    assert "nodeSelector" not in world.job()["spec"]["template"]["spec"]


def test_a_suspended_job_is_moved_to_another_queue() -> None:
    world = World(build={"podTemplate": {"labels": {"kueue.x-k8s.io/queue-name": "a"}}}).settle()
    world.job()["spec"]["suspend"] = True
    world.settle().edit(build={"podTemplate": {"labels": {"kueue.x-k8s.io/queue-name": "b"}}})
    assert world.job()["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "b"


def test_an_engine_job_that_no_node_takes_is_replaced() -> None:
    world = World.of_engine().settle().misses()
    world.unschedulable("0/3 nodes are available: 3 node(s) had untolerated taint {a: b}.")
    first, key = world.job()["metadata"]["name"], world.status["buildHash"]
    world.spec["podTemplate"] = {"tolerations": [{"key": "a", "operator": "Exists"}]}
    world.settle()
    assert world.job()["metadata"]["name"] != first
    assert world.status["buildHash"] == key
    assert {"key": "a", "operator": "Exists"} in (
        world.job()["spec"]["template"]["spec"]["tolerations"]
    )


def engine_wanted(**build: Any) -> World:
    return World(build=build).has_gpus(aheadOfTime=False).settle().job_succeeds()


def test_the_model_that_asked_for_an_engine_moves_its_jobs_and_changes_no_build_that_runs() -> None:
    world = engine_wanted().stage_runs("lookup", "engine-lookup")
    before = world.the("InferenceEngine")["spec"]["build"]
    world.edit(build={"podTemplate": {"priorityClassName": "high"}, "timeout": "2h"})
    spec = world.the("InferenceEngine")["spec"]
    assert spec["podTemplate"] == {"priorityClassName": "high"}
    assert spec["build"] == before


def test_another_model_that_shares_the_engine_leaves_its_jobs_where_they_are() -> None:
    world = engine_wanted()
    engine = world.the("InferenceEngine")
    engine["metadata"]["annotations"]["enginewright.dev/requested-by"] = "another-model"
    before = engine["spec"]
    world.edit(build={"podTemplate": {"priorityClassName": "high"}, "timeout": "2h"})
    assert world.the("InferenceEngine")["spec"] == before


def test_a_model_that_shares_an_engine_takes_over_from_its_deleted_requester() -> None:
    world = engine_wanted()
    engine = world.the("InferenceEngine")
    engine["metadata"]["annotations"]["enginewright.dev/requested-by"] = "another-model"
    world.orphaned.add(engine["metadata"]["name"])
    world.edit(build={"podTemplate": {"priorityClassName": "high"}})
    taken = world.the("InferenceEngine")
    assert taken["spec"]["podTemplate"] == {"priorityClassName": "high"}
    assert taken["metadata"]["annotations"]["enginewright.dev/requested-by"] == MODEL


def test_an_engine_that_is_built_is_left_alone() -> None:
    world = engine_wanted().engine_built().all_available()
    world.edit(build={"podTemplate": {"priorityClassName": "high"}})
    assert "podTemplate" not in world.the("InferenceEngine")["spec"]


BOTH: Final = ("amd64", "arm64")


def of_architecture(
    world: World, reported: str, *nodes: str, several: tuple[str, ...] = ()
) -> World:
    probed = {"processor": Processor(architecture=reported), "architectures": several}
    world.images = {image: held.model_copy(update=probed) for image, held in world.images.items()}
    world.nodes = [node(f"node-{number}") for number, _ in enumerate(nodes)]
    for entry, name in zip(world.nodes, nodes, strict=True):
        entry["metadata"]["labels"]["kubernetes.io/arch"] = name
    return world


@pytest.mark.parametrize(
    ("reported", "several", "nodes", "expected"),
    [
        ("x86_64", (), ("amd64", "arm64"), "amd64"),
        ("aarch64", (), ("amd64", "arm64"), "arm64"),
        ("s390x", (), ("s390x",), "s390x"),
        ("aarch64", (), ("amd64",), None),  # under emulation: no node is of the image's kind
        ("aarch64", BOTH, ("arm64", "amd64"), "amd64"),
        ("x86_64", BOTH, ("arm64",), "arm64"),
        ("x86_64", BOTH, ("s390x",), None),
    ],
)
def test_jobs_follow_the_image(
    reported: str, several: tuple[str, ...], nodes: tuple[str, ...], expected: str | None
) -> None:
    world = of_architecture(World(), reported, *nodes, several=several).settle()
    selector = world.job()["spec"]["template"]["spec"].get("nodeSelector")
    assert selector == (expected and {"kubernetes.io/arch": expected})


@pytest.mark.parametrize(
    "template",
    [
        {"nodeSelector": {"kubernetes.io/arch": "arm64"}},
        {"affinity": {"nodeAffinity": {"of": [{"key": "kubernetes.io/arch"}]}}},
    ],
)
def test_the_users_architecture_counts(template: dict[str, Any]) -> None:
    world = World(build={"podTemplate": template})
    spec = of_architecture(world, "x86_64", "amd64", "arm64").settle().job()["spec"]
    selector = spec["template"]["spec"].get("nodeSelector")
    assert selector == template.get("nodeSelector")


def test_the_look_for_an_engine_goes_where_the_image_runs_and_the_build_to_its_class() -> None:
    world = World().has_gpus(aheadOfTime=False)
    assert RTX_IMAGE in world.images
    made = of_architecture(world, "x86_64", "amd64", "arm64").settle().job_succeeds()
    assert made.the("InferenceEngine")["spec"]["architecture"] == "amd64"
    engine = World.of_engine()
    engine.spec["architecture"] = "amd64"
    look = engine.settle().job()["spec"]["template"]["spec"]
    assert look["nodeSelector"] == {"kubernetes.io/arch": "amd64"}
    build = engine.misses().job()["spec"]["template"]["spec"]
    assert build["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-L4"}


def serving_nodes(world: World) -> dict[str, str]:
    spec = world.settle().job_succeeds().the("Deployment")["spec"]["template"]["spec"]
    return dict(spec.get("nodeSelector") or {})


def test_pods_go_where_the_image_runs_unless_it_runs_everywhere() -> None:
    of_class = dict(World().classes[0].spec.node_selector)
    nodes = "amd64", "arm64"
    result = serving_nodes(of_architecture(World(), "x86_64", *nodes))
    assert result == {**of_class, "kubernetes.io/arch": "amd64"}
    assert serving_nodes(of_architecture(World(), "x86_64", *nodes, several=BOTH)) == of_class
    assert serving_nodes(of_architecture(World(), "x86_64", "s390x")) == of_class, "emulated"
    own = World(podTemplate={"nodeSelector": {"kubernetes.io/arch": "arm64"}})
    result = serving_nodes(of_architecture(own, "x86_64", *nodes))
    assert result == {**of_class, "kubernetes.io/arch": "arm64"}, "the user's choice"


def test_an_architecture_that_no_node_of_the_class_has_is_not_asked_for() -> None:
    """The image may be built for several, and not report it."""
    world = of_architecture(World(), "aarch64", "amd64", "arm64")
    of_class = dict(world.classes[0].spec.node_selector)
    for label in of_class:
        del world.nodes[1]["metadata"]["labels"][label]
    assert of_class
    assert serving_nodes(world) == of_class


def test_nodes_of_another_architecture_restart_no_pods() -> None:
    world = World().settle().job_succeeds().all_available()
    before = world.the("Deployment")["spec"]["template"]
    of_architecture(world, "x86_64", "amd64", "arm64").settle()
    assert world.the("Deployment")["spec"]["template"] == before


@pytest.mark.parametrize(
    ("selected", "several", "expected"),
    [
        ({}, BOTH, "amd64"),
        ({"kubernetes.io/arch": "arm64"}, BOTH, "arm64"),
        ({"kubernetes.io/arch": "arm64"}, (), "amd64"),  # the only one that the image runs on
    ],
)
def test_engine_is_built_on_its_architecture(
    selected: dict[str, str], several: tuple[str, ...], expected: str
) -> None:
    product = {"nvidia.com/gpu.product": "NVIDIA-L4"}
    world = World().has_gpus(aheadOfTime=True, nodeSelector={**product, **selected})
    made = of_architecture(world, "x86_64", "amd64", several=several).settle().job_succeeds()
    assert made.the("InferenceEngine")["spec"]["architecture"] == expected
