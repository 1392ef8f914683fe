"""What a model costs from apply to Ready, with an engine that is in the store: passes and requests, counted."""

from collections import Counter

import pytest
from enginewright.controller.cache import ObjectCache
from enginewright.controller.routing import Router, Sinks
from enginewright.kube.resources import CLAIMS, DEPLOYMENTS, INFERENCE_MODELS, JOBS, PODS, Resource

from tests.support.plan_objects import KINDS, Json, make_object
from tests.support.simulation import runs
from tests.support.watched_models import WatchedModel

BURSTS = 0.02  # seconds between the writes of other controllers
SLOWLY = 1.0  # such that each of them is seen alone

OBJECTS = Counter(
    [
        "apply PersistentVolumeClaim",  # the first of the namespace
        "apply Job",  # prepare
        "apply InferenceEngine",
        "apply Job",  # lookup
        "apply ControllerRevision",
        "apply Service",
        "apply PodDisruptionBudget",
        "apply Deployment",
        "apply ControllerRevision",  # its outcome
    ]
)
# LookingUp, Built
ENGINE = {"apply_status InferenceEngine": 2}
EVENTS = {"create Event": 2}


@pytest.mark.parametrize(
    ("pace", "passes", "statuses"),
    [
        (
            BURSTS,
            {"model": 6, "engine": 4},
            5,
        ),  # Preparing, LookingUp, RollingOut, Serving, its stage
        (SLOWLY, {"model": 19, "engine": 9}, 7),  # and status.replicas, and what is verified
    ],
)
async def test_new_model_costs_so_many_passes_and_requests(
    pace: float, passes: dict[str, int], statuses: int
) -> None:
    world = await WatchedModel(pace).bring_up("resnet")
    assert world.ready("resnet") == ("True", "Serving")
    assert world.counted == passes
    own = {"apply_status InferenceModel": statuses}
    assert world.distant.sent == OBJECTS + Counter({**own, **ENGINE, **EVENTS})


async def test_settled_model_costs_another_process_one_pass_and_no_request() -> None:
    world = await (await WatchedModel(BURSTS).bring_up("resnet")).start_again()
    assert world.counted == {"model": 1, "engine": 1}
    assert world.distant.sent.total() == 0


async def test_events_of_a_new_model_say_what_was_done_and_no_progress_that_took_seconds() -> None:
    world = await WatchedModel(BURSTS).bring_up("resnet")
    reasons = sorted(line.partition(":")[0] for line in world.list_events())
    assert reasons == ["Built", "Serving"]


def show(resource: Resource, before: Json, now: Json) -> tuple[int, int]:
    """Return how often the model is queued for a change of an object: at once, and lazily."""
    queued: list[object] = []
    lazily: list[object] = []
    router = Router(
        ObjectCache(),
        Sinks(
            model=queued.append,
            engine=queued.append,
            accelerator_class=queued.append,
            image=queued.append,
            proposals=lambda: None,
            collection=lambda _namespace: None,
            lazily=lazily.append,
        ),
    )
    router.event(INFERENCE_MODELS, make("InferenceModel", {}), deleted=False)
    for version, obj in enumerate((before, now)):
        metadata = {**obj["metadata"], "resourceVersion": str(version + 1)}
        for queue in (queued, lazily):
            queue.clear()
        router.event(resource, {**obj, "metadata": metadata}, deleted=False)
    return len(queued), len(lazily)


def make(kind: str, status: Json, **changes: object) -> Json:
    labels = {"enginewright.dev/model": "resnet"}
    name = "resnet" if kind == "InferenceModel" else "resnet-x"
    made = make_object(kind, name, "shop", labels=labels, spec={}, status=status)
    made["metadata"] |= changes
    return made


@pytest.mark.parametrize(
    ("kind", "before", "now"),
    [
        ("Job", {"active": 0}, {"active": 1, "ready": 0, "terminating": 0}),
        ("Job", {}, {"uncountedTerminatedPods": {"succeeded": ["uid"]}}),
        ("Deployment", {"replicas": 1}, {"replicas": 1, "unavailableReplicas": 1}),
        ("Pod", {"phase": "Pending"}, {"phase": "Pending", "qosClass": "Burstable"}),
    ],
)
def test_counters_that_no_plan_reads_queue_nothing(kind: str, before: Json, now: Json) -> None:
    resource = KINDS[kind]
    assert show(resource, make(kind, before), make(kind, now)) == (0, 0)
    kept = {"finalizers": ["batch.kubernetes.io/job-tracking"]}
    assert show(resource, make(kind, before, **kept), make(kind, now)) == (0, 0)


@pytest.mark.parametrize(
    ("resource", "before", "now"),
    [
        (JOBS, make("Job", {}), make("Job", {"startTime": "2026-11-21T12:00:00Z"})),
        (JOBS, make("Job", {"failed": 1}), make("Job", {"failed": 2})),
        (JOBS, make("Job", {}), {**make("Job", {}), "spec": {"suspend": True}}),
        (PODS, make("Pod", {}), make("Pod", runs("2026-11-21T12:00:00Z", ready=False))),
        (DEPLOYMENTS, make("Deployment", {}), make("Deployment", {"availableReplicas": 1})),
        # an edit, which is undone
        (DEPLOYMENTS, make("Deployment", {}), {**make("Deployment", {}), "spec": {"paused": True}}),
        (DEPLOYMENTS, make("Deployment", {}), make("Deployment", {}, labels={})),
        (PODS, make("Pod", {}), make("Pod", {}, deletionTimestamp="2026-11-21T12:00:00Z")),
    ],
)
def test_what_a_plan_reads_and_every_edit_queues_the_model(
    resource: Resource, before: Json, now: Json
) -> None:
    assert sum(show(resource, before, now)) == 1


@pytest.mark.parametrize(
    ("kind", "before", "now", "expected"),
    [
        ("Pod", {"phase": "Pending"}, {"phase": "Running"}, "lazily"),
        ("Job", {}, {"startTime": "2026-11-21T12:00:00Z"}, "lazily"),
        ("Job", {}, {"conditions": [{"type": "Complete", "status": "True"}]}, "at once"),
        ("Deployment", {}, {"replicas": 1, "updatedReplicas": 1}, "lazily"),
        ("Deployment", {"replicas": 1}, {"replicas": 1, "availableReplicas": 1}, "at once"),
    ],
)
def test_what_proceeds_waits_for_what_it_comes_to(
    kind: str, before: Json, now: Json, expected: str
) -> None:
    result = show(KINDS[kind], make(kind, before), make(kind, now))
    assert result == ((0, 1) if expected == "lazily" else (1, 0))


def test_a_claim_that_is_bound_queues_its_models_once_for_its_size_and_for_nothing_else() -> None:
    bound = {"capacity": {"storage": "1Gi"}}
    claim = {**make("PersistentVolumeClaim", {}), "spec": {"accessModes": ["ReadWriteMany"]}}
    placed = {**claim, "spec": {**claim["spec"], "volumeName": "pv-1"}}
    assert show(CLAIMS, claim, placed) == (0, 0)
    assert show(CLAIMS, claim, {**placed, "status": bound}) == (0, 1)
