"""In any order of events, plans come to rest, keep their promises, and take away nothing that serves.

Hypothesis plays users, administrators, the cluster and crashes of the operator; after every step the plans are carried
out until they change nothing. That no pass takes away available pods is checked by the World itself.
"""

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final

import pytest
from enginewright.api.accelerator_class import AcceleratorClassSpec
from enginewright.api.inference_engine import InferenceEngine
from enginewright.api.inference_model import InferenceModelSpec
from enginewright.kube.errors import Forbidden
from enginewright.manifests import pod_options
from enginewright.manifests.field_managers import FIELD_MANAGER
from enginewright.manifests.labels import (
    CLASS,
    COMPONENT,
    PROMOTE,
    REFRESH,
    RETRY,
    REVISION,
    ROLLBACK,
    SERVE,
)
from enginewright.manifests.outcome import RevisionOutcome
from enginewright.manifests.snapshot import ClassSnapshot
from enginewright.observed.artifact_keys import keys_of_pods
from enginewright.observed.deployments import count_managers, deployment_view
from enginewright.observed.pods import JOB_NAME, pod_view
from enginewright.observed.revisions import revision_view
from enginewright.plan.engines.engine import engine_use, users_of
from enginewright.plan.pods import never_ran
from enginewright.plan.rollout.pod_counts import asks_for_pods
from enginewright.plan.store.collection import NamespaceObjects, find_needed_keys
from enginewright_contract.keys import sha256_text
from enginewright_contract.reasons import Reason
from enginewright_contract.report import Progress, PublishedBackend
from enginewright_contract.task import PrepareTask
from enginewright_contract.verdict import Check
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from typing_extensions import override

from tests.support import releases
from tests.support.cached import CachedCopies, read
from tests.support.effort import examples
from tests.support.plan_objects import (
    OTHER,
    RTX_IMAGE,
    SECOND,
    Json,
    accelerator_class,
    gpu_node,
    image_facts,
    l4,
    publish_model,
    verdict,
)
from tests.support.plan_world import World, conditions_of
from tests.support.simulation import (
    NO_DEVICE,
    PERMANENT,
    PROGRESS_DEADLINE,
    report_end,
    statuses,
)

_MODEL: Final = "InferenceModel"
_MAY_NEED: Final = (_MODEL, "InferenceEngine", "ControllerRevision")  # as in `NamespaceObjects`
EXAMPLES: Final = examples(20)  # of each start
YIELD_LIMIT: Final = timedelta(minutes=5, seconds=pod_options.GRACE_SECONDS)
NUMBERS: Final = st.integers(0, 9)
REASONS: Final = st.sampled_from(sorted(Reason))
CRASHES: Final = st.sampled_from(
    [Reason.DRIVER_MISSING, Reason.BACKEND_CRASHED, Reason.ENGINE_CORRUPT, Reason.ARTIFACT_MISSING]
)
FAILURES: Final = ["reported", "reported by its pod", "late", "deleted", "OOMKilled", "Evicted"]
UNPLACED: Final = ["", "", NO_DEVICE, "0/2 nodes are available: 2 Too many pods."]
WAITS: Final = st.sampled_from([0, 11])  # minutes for a node
QUOTA: Final = "exceeded quota: gpus"
REFUSED: Final = [
    # by a quota: what is recorded in those that are there is no new one
    ("create", "ControllerRevision"),
    *(
        ("apply", kind)
        for kind in ("Job", "InferenceEngine", "PodDisruptionBudget", "HorizontalPodAutoscaler")
    ),
]
AT_WORK: Final = ("Preparing", "LookingUp", "Queued", "Building")
OLD_RESTARTS: Final = st.sampled_from([("server", 5), ("istio-proxy", 0)])  # hours ago
CLASSES: Final[list[list[tuple[int, int | None]]]] = [  # number of a class, and its own count
    [],
    [(0, None)],
    [(1, None)],
    [(0, None), (1, None)],
    [(0, 1), (1, None)],
    [(1, 3), (2, None)],
    [(2, 3)],
    [(0, None), (9, 2)],
]
MEDIANS: Final = [  # of backends that are compared
    tuple(
        PublishedBackend(backend=backend, shapes="opt", p50=p50, p99=p50)
        for backend, p50 in (("tensorrt-rtx", 0.003), ("cpu", median))
    )
    for median in (0.002, 0.004)
]
EDITS: Final[list[Json]] = [  # of a class
    {"tolerations": [{"key": "dedicated", "operator": "Exists"}]},
    {"tolerations": []},
    {"nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-L4", "nvidia.com/gpu.memory": "23034"}},
    {"nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-L4"}},
    {"backends": ["cpu"]},
    {"backends": ["cuda", "tensorrt-rtx"]},
    {"backends": ["tensorrt-rtx", "cuda", "cpu"]},
    {"resourceName": "example.com/device"},
]
LIMITS: Final = [None, (1, 8), (3, 4)]  # of the autoscaler
CHANGES: Final[list[Json]] = [
    {"rollout": {"paused": True}},
    {"rollout": {"strategy": "Recreate"}},
    {"rollout": {"canary": {"replicas": 1}}},
    {"rollout": {"canary": {"replicas": 2, "hold": "5m", "steps": ["50%"]}}},
    {"rollout": {"canary": {"replicas": 1}, "strategy": "InPlace"}},
    {"rollout": {"canary": {"replicas": 1}, "onFailure": "Pause"}},
    {"rollout": None},
    {"serving": {"batching": {"maxSize": 8}}},
    {"serving": None},
    {"backends": ["openvino"]},  # which no class allows
    {"backends": None},
    {"build": {"interim": "CPU"}},
    {"build": {"interim": "CUDA"}},
    {"build": {"choose": "Fastest"}},
    {"build": {"choose": "Fastest", "workspace": "1Gi", "interim": "CPU"}},
    {"build": None},
    {"podTemplate": {"labels": {"team": "a"}}},
    {"podTemplate": {"runtimeClassName": "nvidia"}},
    {"build": {"timeout": "2h"}},
    {"fallback": {"policy": "Allow"}},
    {"fallback": {"policy": "Budget", "maxNodeShare": "1%"}},
]


def on_device(strategy: str) -> World:
    """Return a model that serves on the only device, where another engine is to be built."""
    world = World(rollout={"strategy": strategy}, replicas=1).has_gpus(aheadOfTime=False)
    world.nodes.append(gpu_node("g"))
    world.settle().job_succeeds().misses()
    world.succeeds("engine", nodes_accelerated=415).all_available()
    return world.edit(source=OTHER).job_succeeds(SECOND).misses()


def with_two_backends() -> World:
    spec = {"fallback": {"policy": "Allow"}, "backends": ["tensorrt-rtx", "cuda"]}
    return World(**spec, replicas=2).has_gpus().settle().job_succeeds().succeeds("engine")


def with_a_choice() -> World:
    """Return a model that serves on processors, since they are faster than its engine."""
    spec = {"backends": ["tensorrt-rtx", "cpu"], "build": {"choose": "Fastest"}, "replicas": 2}
    world = World(**spec).has_gpus(aheadOfTime=False, backends=["tensorrt-rtx", "cpu"])
    rtx = world.images[RTX_IMAGE]
    both = rtx.model_copy(update={"backends": {**rtx.backends, "cpu": "1.31.1"}})
    world.images = {**world.images, RTX_IMAGE: both}
    world.settle().job_succeeds().misses()
    return world.succeeds("engine", nodes_accelerated=415, backends=MEDIANS[0])


def on_classes() -> World:
    world = World("a", "b", "c", accelerators=[{"class": "a"}], replicas=4)
    return world.settle().job_succeeds().all_available()


def after_upgrade(release: str, name: str) -> Callable[[], World]:
    text = (releases.FOLDER / f"{release}.json").read_text()
    return lambda: releases.restore(json.loads(text)["worlds"][name]).settle()


def with_a_canary() -> World:
    world = on_classes().edit(rollout={"canary": {"replicas": 1}})
    return world.edit(source=OTHER).job_succeeds(SECOND).canary_available()


def waiting_for_a_device() -> World:
    return World(replicas=2).settle().job_succeeds().update_unschedulable()


STARTS: Final[dict[str, Callable[[], World]]] = {
    "a canary": with_a_canary,
    "waiting for a device": waiting_for_a_device,
    "new": lambda: World(replicas=2).settle(),
    "on classes": on_classes,
    "two backends": with_two_backends,
    "a choice": with_a_choice,
    "on a device": lambda: on_device("Recreate"),
    "on a device that is kept": lambda: on_device("Surge"),
    "an engine": lambda: World.of_engine().settle(),
    "an engine ahead of time": lambda: World.of_engine(ahead_of_time=True).settle(),
    **{
        f"{path.stem} {name}": after_upgrade(path.stem, name)
        for path in sorted(releases.FOLDER.glob("*.json"))
        for name in json.loads(path.read_text())["worlds"]
    },
}


def of_a_model(machine: "Cluster") -> bool:
    return machine.world.model is not None


def of_an_engine(machine: "Cluster") -> bool:
    return machine.world.model is None


def a_job_runs(machine: "Cluster") -> bool:
    return bool(machine.world.running_jobs())


def a_job_lacks_a_pod(machine: "Cluster") -> bool:
    return any(map(machine.lacks_pod, _names(machine.world.running_jobs())))


def pods_are_to_serve(machine: "Cluster") -> bool:
    return bool(machine.world.serving_deployments())


def a_canary_runs(machine: "Cluster") -> bool:
    return bool(machine.world.canaries())


def pods_wait_for_a_node(machine: "Cluster") -> bool:
    return machine.world.model is not None and bool(machine.world.waiting_pods())


def has_an_autoscaler(machine: "Cluster") -> bool:
    return bool(machine.world.all("HorizontalPodAutoscaler"))


class Cluster(RuleBasedStateMachine):
    """One model or engine, and all that may happen to it."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world
        self.engines: dict[str, tuple[Json, Json, int]] = {}  # by uid: as last seen, Jobs so far
        self.pool = {device_class.metadata.name: device_class for device_class in world.classes}
        for name in ("a", "b"):
            self.pool.setdefault(name, accelerator_class(name))
        if "l4" in self.pool:
            other = l4(nodeSelector={"nvidia.com/gpu.product": "NVIDIA-L40S"})
            metadata = other.metadata.model_copy(update={"name": "l40s"})
            self.pool["l40s"] = other.model_copy(update={"metadata": metadata})
        self.images = 1
        self.content: dict[str, int] = {}  # versions of what addresses hold
        self.last_complete = self._last_complete() if world.model else ""
        self.patches = pytest.MonkeyPatch()
        self.copies, self.copied = CachedCopies(), set[str]()  # resource versions

    @override
    def teardown(self) -> None:
        self.patches.undo()

    # users

    @precondition(of_a_model)
    @rule(name=st.sampled_from("xyz"))
    def change_the_source(self, name: str) -> None:
        self.world.edit(source={"uri": f"https://models.example/{name}.onnx"})

    @precondition(of_a_model)
    @rule(replicas=NUMBERS)
    def scale(self, replicas: int) -> None:
        self.world.edit(replicas=replicas)

    @precondition(of_a_model)
    @rule(classes=st.sampled_from(CLASSES))
    def choose_classes(self, classes: list[tuple[int, int | None]]) -> None:
        names = dict(enumerate(self.pool))
        chosen = {names.get(which, "nosuch"): count for which, count in classes}
        accelerators = [
            {"class": name, **({} if count is None else {"replicas": count})}
            for name, count in chosen.items()
        ]
        self.world.edit(accelerators=accelerators or None)

    @precondition(of_a_model)
    @rule(limits=st.sampled_from(LIMITS))
    def autoscaling_is_set(self, limits: tuple[int, int] | None) -> None:
        autoscaling = limits and {"minReplicas": limits[0], "maxReplicas": limits[1]}
        self.world.edit(serving={"autoscaling": autoscaling} if autoscaling else None)

    @precondition(has_an_autoscaler)
    @rule(which=NUMBERS, count=NUMBERS)
    def an_autoscaler_scales(self, which: int, count: int) -> None:
        autoscalers = self.world.all("HorizontalPodAutoscaler")
        chosen = autoscalers[which % len(autoscalers)]
        limits = chosen["spec"]["minReplicas"], chosen["spec"]["maxReplicas"]
        name = chosen["metadata"]["name"]
        replicas = min(max(count, limits[0]), limits[1])
        self.world.set_scale(name, replicas)
        assert self.world.settle().get("Deployment", name)["spec"]["replicas"] == replicas

    @precondition(pods_are_to_serve)
    @rule(which=NUMBERS, count=NUMBERS)
    def somebody_scales_a_deployment(self, which: int, count: int) -> None:
        deployments = self.world.serving_deployments()
        self.world.set_scale(deployments[which % len(deployments)]["metadata"]["name"], count)
        self.world.settle()

    @precondition(of_a_model)
    @rule(change=st.sampled_from(CHANGES))
    def change_the_spec(self, change: Json) -> None:
        self.world.edit(**change)

    @precondition(of_a_model)
    @rule(number=NUMBERS)
    def ask_for_a_refresh(self, number: int) -> None:
        uri = self.world.spec["source"]["uri"]
        self.content[uri] = self.content.get(uri, 0) + number % 2
        self.world.annotate(REFRESH, str(number))

    @precondition(of_an_engine)
    @rule(number=NUMBERS)
    def change_the_build(self, number: int) -> None:
        self.world.build_changes(image=f"registry.example/gpu:{number}")

    # administrators

    @precondition(of_a_model)
    @rule(which=NUMBERS)
    def add_or_remove_a_class(self, which: int) -> None:
        world = self.world
        name = list(self.pool)[which % len(self.pool)]
        kept = [
            device_class for device_class in world.classes if device_class.metadata.name != name
        ]
        is_new = len(kept) == len(world.classes)
        before = copy.deepcopy((self._templates(), world.conditions()["Ready"]))
        is_prevented = world.conditions()["Validated"][0] == "False"
        world.classes = [*kept, self.pool[name]] if is_new else kept
        world.settle()
        if is_new and before[1][0] == "True" and not is_prevented:  # else it may be what lacked
            assert (self._templates(), world.conditions()["Ready"]) == before

    @precondition(of_a_model)
    @rule(which=NUMBERS, edit=st.sampled_from(EDITS))
    def a_class_is_edited(self, which: int, edit: Json) -> None:
        world = self.world
        if not world.classes:
            return
        before = self._find_begun()
        is_held = "serving" in world.status and not world.turn and not self._waits_or_moves()
        edited = world.classes[which % len(world.classes)]
        spec = edited.spec.model_validate({**edited.spec.manifest(), **edit})
        name = edited.metadata.name
        self.pool[name] = edited.model_copy(update={"spec": spec})
        world.classes = [self.pool[name] if one is edited else one for one in world.classes]
        world.settle()
        if is_held:
            assert self._find_begun() == before, "no edit begins before its turn"

    def _waits_or_moves(self) -> bool:
        """Return whether something waits for a node, or a move goes on, which another edit ends."""
        waiting = [pod for pod in self.world.all("Pod") if pod_view(pod).unschedulable]
        return bool(waiting) or self.world.status["images"]["state"] == "Moving"

    def _find_begun(self) -> tuple[Any, ...]:
        """Return all that runs, or is to run."""
        world = self.world
        return copy.deepcopy(self._templates()), _names(world.canaries()), _names(world.all("Job"))

    @precondition(of_a_model)
    @rule(name=st.sampled_from(["g", "h"]), memory=st.sampled_from(["23034", "46068"]))
    def a_node_joins(self, name: str, memory: str) -> None:
        world = self.world
        before = self._find_begun(), world.conditions()["Ready"]
        kept = [node for node in world.nodes if node["metadata"]["name"] != name]
        world.nodes = [*kept, gpu_node(name, **{"nvidia.com/gpu.memory": memory})]
        world.settle()
        # it may have what a rejected backend lacked
        if before[1][0] == "True" and not world.status.get("rejectedBackends"):
            assert (self._find_begun(), world.conditions()["Ready"]) == before

    @precondition(of_a_model)
    @rule(which=NUMBERS, state=st.sampled_from(["new", "new, as before", "probed", "failed"]))
    def images_change(self, which: int, state: str) -> None:
        images = self.world.config.images
        variant = sorted(images)[which % len(images)]
        probed = self.world.images.get(images[variant])
        if state.startswith("new"):
            self.images += 1
            like = probed if state != "new" else None
            image = f"registry.example/{variant}:{self.images}"
            self.world.new_runtime_image(image, variant, like=like)
        elif state == "failed":
            self.world.image_failures = {images[variant]: "no registry"}
        else:
            backends = {"rtx": {"tensorrt-rtx": "1.7.1.116"}, "gpu": {"cuda": "13"}}
            facts = image_facts(variant)
            facts = facts.model_copy(update={"backends": backends.get(variant, facts.backends)})
            self.world.images = {images[variant]: facts, **self.world.images}
            self.world.image_failures = {}
        self.world.settle()

    @precondition(of_a_model)
    @rule()
    def the_turn_to_move_changes(self) -> None:
        self.world.turn = not self.world.turn
        self.world.settle()

    @rule(
        mode=st.sampled_from(["ReadWriteOnce", "ReadWriteMany"]), name=st.sampled_from(["g", "h"])
    )
    def the_cluster_changes(self, mode: str, name: str) -> None:
        for claim in self.world.all("PersistentVolumeClaim"):
            claim["spec"]["accessModes"] = [mode]
        kept = [node for node in self.world.nodes if node["metadata"]["name"] != name]
        joins = [gpu_node(name)] if len(kept) == len(self.world.nodes) else []
        self.world.nodes = [*kept, *joins]
        self.world.settle()

    @rule(number=NUMBERS)
    def the_operator_is_upgraded(self, number: int) -> None:
        before = copy.deepcopy(self._templates())
        self.patches.setattr(pod_options, "GRACE_SECONDS", number)
        policy = "Always" if number % 2 else "IfNotPresent"
        self.world.config = replace(self.world.config, image_pull_policy=policy)
        self.world.operator_restarts()
        assert self._templates() == before, "nothing is restarted for it"

    # Jobs

    def _job(self, which: int) -> str:
        running = self.world.running_jobs()
        return str(running[which % len(running)]["metadata"]["name"])

    @precondition(a_job_runs)
    @rule(which=NUMBERS, good=st.booleans())
    def a_job_succeeds(self, which: int, good: bool) -> None:
        name = self._job(which)
        component = self.world.job(name)["metadata"]["labels"][COMPONENT]
        if component == "prepare":
            task = PrepareTask.model_validate_json(self.world.task(name))
            version = self.content.get(task.source_uri, 0)
            digest = task.pinned.get("model") or sha256_text(f"{task.source_uri} {version}")
            key = sha256_text(f"{digest} {name.rpartition('-')[0]}")
            self.world.job_succeeds(publish_model(key, digest), name)
        elif component == "engine" or good:
            accelerated = 415 if good else 400
            self.world.succeeds(name, nodes_accelerated=accelerated, backends=MEDIANS[which % 2])
        else:
            self.world.misses(name)

    @precondition(a_job_runs)
    @rule(which=NUMBERS, how=st.sampled_from(FAILURES), reason=REASONS)
    def a_job_fails(self, which: int, how: str, reason: Reason) -> None:
        world, name = self.world, self._job(which)
        stages = world.stages(name)
        if how == "reported" or (how == "reported by its pod" and reason in PERMANENT):
            world.job_fails(reason, of=name)
        elif how == "reported by its pod":
            world.pod_fails(reason, of=name)
        elif how == "late":
            world.is_too_late(stages[0], name)
        elif how == "deleted":
            world.job_is_deleted(name)
        else:
            killed = report_end(stages[0], code=137, reason=how)
            status = {"reason": how, **statuses(stages, stages[0], killed)}
            world.job_pod_becomes(of=name, phase="Failed", **status)
            if world.find("Job", name):
                world.job_ends("Failed", name, reason="BackoffLimitExceeded")

    @precondition(a_job_runs)
    @rule(which=NUMBERS, percent=st.integers(0, 100), unplaced=st.sampled_from(UNPLACED))
    def a_job_goes_on(self, which: int, percent: int, unplaced: str) -> None:
        name = self._job(which)
        self.world.job(name)["spec"].pop("suspend", None)
        if unplaced:
            self.world.unschedulable(unplaced, name)
        else:
            stages = self.world.stages(name)
            stage = stages[percent % len(stages)]
            self.world.progress[name] = Progress(stage=stage, percent=percent)
            self.world.stage_runs(stage, name)

    @precondition(a_job_lacks_a_pod)
    @rule(which=NUMBERS)
    def the_api_server_refuses_a_jobs_pod(self, which: int) -> None:
        names = [name for name in _names(self.world.running_jobs()) if self.lacks_pod(name)]
        name = sorted(names)[which % len(names)]
        job = self.world.job(name)
        self.world.job_pods_are_refused(QUOTA, name).settle()
        (owner,) = [entry for entry in self._ours() if _owns(entry, job)]
        refreshes = "prepared" in owner["status"]  # beside the work that Ready is about
        is_held = job["spec"].get("suspend") or refreshes
        if not is_held and conditions_of(owner)["Ready"][1] in AT_WORK:
            (ready,) = [item for item in owner["status"]["conditions"] if item["type"] == "Ready"]
            assert QUOTA in ready["message"], "work that cannot begin says why"

    @precondition(a_job_runs)
    @rule(which=NUMBERS)
    def the_queue_takes_a_job_off_its_node(self, which: int) -> None:
        name = self._job(which)
        job, stages = self.world.job(name), self.world.stages(name)
        (owner,) = [entry for entry in self._ours() if _owns(entry, job)]
        before = conditions_of(owner)["Ready"][1]
        job["spec"]["suspend"] = True
        killed = report_end(stages[0], code=143)
        self.world.job_pod_becomes(of=name, phase="Failed", **statuses(stages, stages[0], killed))
        after = conditions_of(owner)["Ready"][1]
        assert after == before or after not in set(Reason), "to wait is no failure"

    # Deployments

    def _deployment(self, which: int) -> Json:
        deployments = self.world.serving_deployments()
        return deployments[which % len(deployments)]

    @rule()
    def deployments_complete(self) -> None:
        self.world.all_available()

    @precondition(pods_are_to_serve)
    @rule(which=NUMBERS, available=NUMBERS)
    def pods_come_and_go(self, which: int, available: int) -> None:
        deployment = self._deployment(which)
        replicas = deployment["spec"]["replicas"]
        if available >= replicas:
            self.world.complete(deployment["metadata"]["name"])
            self.world.settle()
        else:
            self.world.partly_available(deployment["metadata"]["name"], available)

    @rule(available=st.integers(0, 2), stuck=st.booleans())
    def deployments_roll(self, available: int, stuck: bool) -> None:
        self.world.rolling(available, stuck=stuck)

    @precondition(pods_are_to_serve)
    @rule(which=NUMBERS, reason=CRASHES, restarts=st.sampled_from([0, 2]))
    def a_pod_crashes(self, which: int, reason: Reason, restarts: int) -> None:
        name = self._deployment(which)["metadata"]["name"]
        is_first = not any(map(_has_crashed, self.world.all("Pod")))
        before = self._find_rejected()
        container = "fetch-artifact" if reason.startswith("Artifact") else "server"
        self.world.crash(name, reason, container, restarts=restarts)
        self.world.settle()
        if is_first and not restarts:
            assert self._find_rejected() <= before, "one crash is an accident"

    @precondition(of_a_model)
    @rule(restarts=OLD_RESTARTS)
    def pods_that_are_ready_have_restarted(self, restarts: tuple[str, int]) -> None:
        world, (container, hours) = self.world, restarts
        canaries, before = _names(world.canaries()), world.conditions()["RolledBack"][0]
        for pod in world.all("Pod"):
            if "deployment" in pod["metadata"]["labels"] and pod_view(pod).ready:
                world.has_restarted(pod, container, ago=timedelta(hours=hours))
        world.settle()
        assert _names(world.canaries()) <= canaries, "nothing is tried for it"
        assert before == "True" or world.conditions()["RolledBack"][0] == "False"

    @precondition(a_canary_runs)
    @rule()
    def a_canary_is_verified(self) -> None:
        self.world.canary_available()

    @precondition(a_canary_runs)
    @rule(reason=CRASHES, restarts=st.sampled_from([0, 2]))
    def a_canary_crashes(self, reason: Reason, restarts: int) -> None:
        name = self.world.canaries()[0]["metadata"]["name"]
        self.world.crash(name, reason, restarts=restarts, index=0)
        self.world.settle()

    @precondition(a_canary_runs)
    @rule(minutes=WAITS)
    def a_canary_finds_no_device(self, minutes: int) -> None:
        self.world.canary_unschedulable().later(minutes=minutes)

    @precondition(pods_are_to_serve)
    @rule(minutes=WAITS)
    def new_pods_find_no_device(self, minutes: int) -> None:
        self.world.update_unschedulable().later(minutes=minutes)

    @precondition(a_canary_runs)
    @rule(minutes=WAITS)
    def no_scheduler_looks_at_a_canary(self, minutes: int) -> None:
        name = self.world.canaries()[0]["metadata"]["name"]
        self.world.leave_pod_ignored(name, index=0)
        self.world.later(minutes=minutes)

    @precondition(of_a_model)
    @rule(is_down=st.booleans(), minutes=WAITS)
    def a_node_goes_down_or_comes_back(self, is_down: bool, minutes: int) -> None:
        world, before = self.world, self.world.conditions()["RolledBack"]
        after = (world.node_goes_down() if is_down else world.node_comes_back()).conditions()
        assert after["RolledBack"][0] == "False" or after["RolledBack"] == before
        world.later(minutes=minutes)

    @precondition(pods_wait_for_a_node)
    @rule()
    def nodes_take_waiting_pods(self) -> None:
        before = self.world.conditions()["RolledBack"]
        after = self.world.nodes_take_pods().conditions()["RolledBack"]
        assert after[0] == "False" or after == before, "what waited gets the time to start"

    @precondition(of_a_model)
    @rule(name=st.sampled_from([PROMOTE, ROLLBACK, RETRY]), state=st.booleans())
    def a_user_decides(self, name: str, state: bool) -> None:
        revision = self.world.status.get("revision", "")
        self.world.annotate(name, revision if state and revision else None)

    @rule(check=st.sampled_from([None, Check.PLACEMENT, Check.GOLDEN]), silent=st.booleans())
    def sidecars_are_polled(self, check: Check | None, silent: bool) -> None:
        self.world.silent = set(self.world.verdicts) if silent else set()
        reason = Reason.NODE_FALLBACK if check is Check.PLACEMENT else Reason.PARITY_FAILED
        self.world.sidecars_say(verdict(failed={check: reason} if check else None))

    @precondition(pods_are_to_serve)
    @rule()
    def no_pod_passes_its_proofs(self) -> None:
        for name in [
            serving_deployment["metadata"]["name"]
            for serving_deployment in self.world.serving_deployments()
        ]:
            if not self.world.find("Deployment", name):
                continue  # it went with the pods of another class
            self.world.partly_available(name, 0)
            for pod in self.world.pods_of("deployment", name):
                said = verdict(failed={Check.GOLDEN: Reason.PARITY_FAILED})
                self.world.verdicts[pod["metadata"]["name"]] = said
        self.world.settle()

    # time and the operator

    @rule(minutes=st.sampled_from([1, 10, 61, 25 * 60]))
    def time_passes(self, minutes: int) -> None:
        self.world.jobs_are_cleaned_away().later(minutes=minutes)
        if self.world.model and "serving" not in self.world.status:
            applied = {_revision(deployment) for deployment in self.world.serving_deployments()}
            assert {_revision(pod) for pod in self.world.waiting_pods()} <= applied

    @rule(writes=NUMBERS)
    def the_api_server_will_refuse(self, writes: int) -> None:
        self.world.kube.refused_after = writes

    @rule(write=st.sampled_from(REFUSED))
    def the_api_server_refuses(self, write: tuple[str, str]) -> None:
        self.world.kube.refuses[write] = Forbidden("exceeded quota", code=403)

    @precondition(lambda self: self.world.kube.refuses)
    @rule()
    def the_api_server_refuses_nothing(self) -> None:
        self.world.kube.refuses.clear()
        self.world.later(minutes=2)
        for entry in self._ours():
            assert conditions_of(entry)["Ready"][1] != "ApplyFailed"

    @rule(status=st.booleans())
    def memory_is_lost(self, status: bool) -> None:
        if not status or not self.world.model:
            self.world.operator_restarts()
            return
        revisions = {
            _revision(serving_deployment) for serving_deployment in self.world.serving_deployments()
        }
        revisions = {revision for revision in revisions if self._is_promoted(revision)}
        self.world.status = {}
        self.world.operator_restarts()
        self.last_complete = self._last_complete()
        assert self.last_complete in revisions or not revisions, "it is known from the revisions"

    # promises

    @invariant()
    def nothing_that_is_read_of_an_object_is_lost_in_the_cache(self) -> None:
        """So a plan from the cache is the same as one from the objects."""
        for entry in self.world.kube.objects.values():
            if (version := entry["metadata"]["resourceVersion"]) not in self.copied:
                self.copied.add(version)
                managed = {"managedFields": [{"manager": "m"}], **entry["metadata"]}
                copied = self.copies.make_copy({**entry, "metadata": managed})
                assert read(copied) == read(entry)
                if entry["kind"] == "Deployment":  # with what a user's edit is found
                    assert copied["spec"] == entry["spec"]

    @invariant()
    def one_state_is_reported(self) -> None:
        for entry in self._ours():
            states = conditions_of(entry)
            reported = [
                kind for kind in ("Ready", "Reconciling", "Stalled") if states[kind][0] == "True"
            ]
            assert len(reported) == 1
        assert self.world.message()

    @precondition(of_a_model)
    @invariant()
    def what_waits_for_an_image_or_keeps_its_own_gets_no_pods_of_another(self) -> None:
        images, revision_name = (
            self.world.status.get("images", {}),
            self.world.status.get("revision", ""),
        )
        revision = self.world.find("ControllerRevision", f"resnet-{revision_name}")
        if images.get("state") in ("Waiting", "Kept") and revision:
            target = {image["image"] for image in images.get("target", ())}
            assert not target & {item["image"] for item in revision["data"]["classes"]}
            edited = {
                used["class"]: used for used in images.get("classes", ()) if used.get("target")
            }
            for item in revision["data"]["classes"]:
                if used := edited.get(item["name"]):
                    has = ClassSnapshot.model_validate(item)
                    spec = AcceleratorClassSpec.model_validate_json(used["spec"])
                    assert has.restore(spec) == spec

    @precondition(of_a_model)
    @invariant()
    def ready_means_that_the_wanted_revision_serves(self) -> None:
        status = self.world.status
        ready = self.world.conditions()["Ready"]
        if ready[0] == "True":
            assert ready[1] == "ScaledToZero" or status["revision"] == status["serving"]["revision"]
            carried = {
                _revision(serving_deployment)
                for serving_deployment in self.world.serving_deployments()
            }
            waits = status.get("target", {}).get("reason") == "ScaledToZero" == ready[1]
            assert carried == {status["serving"]["revision"] if waits else status["revision"]}

    @precondition(of_a_model)
    @invariant()
    def what_serves_is_what_pods_are_ready_of(self) -> None:
        serving, ready = self.world.status.get("serving"), self.world.ready_revisions()
        revisions = {
            _revision(serving_deployment) for serving_deployment in self.world.serving_deployments()
        }
        if serving and ready & {*revisions, serving.get("lastRolledOut")}:
            assert serving["revision"] in ready

    @precondition(of_a_model)
    @invariant()
    def the_last_good_revision_is_known_until_another_one_has_served(self) -> None:
        before, self.last_complete = self.last_complete, self._last_complete()
        if self.last_complete:
            assert self.world.find("ControllerRevision", f"resnet-{self.last_complete}")
        assert self.last_complete == before or self.last_complete in self.world.ready_revisions()

    @precondition(of_a_model)
    @invariant()
    def a_canary_belongs_to_what_is_brought_up(self) -> None:
        world = self.world
        target = world.status.get("target")
        pauses = world.spec.get("rollout", {}).get("onFailure") == "Pause"
        for canary in world.canaries():
            looks_back = _revision(canary) != world.status.get("revision")
            assert target or pauses or looks_back
            # where the record of a new revision is refused, the canary that is there stays
            is_recorded = ("create", "ControllerRevision") not in world.kube.refuses
            assert not target or _revision(canary) == target["revision"] or not is_recorded
        for pod in world.canary_pods():
            gets_requests = pod["metadata"]["labels"][COMPONENT] == SERVE
            is_restored = world.conditions()["RolledBack"][0] == "True"
            assert not gets_requests or (
                target["phase"] in ("Analyzing", "Promoting")
                and _revision(pod) == target["revision"]
                if target
                else is_restored and _revision(pod) != world.status["revision"]
            )

    @precondition(of_a_model)
    @invariant()
    def nothing_that_pods_read_counts_as_unneeded(self) -> None:
        """Also if only models, revisions and InferenceEngines were known."""
        objects = {kind: self.world.all(kind) for kind in _MAY_NEED}
        deployments = self.world.all("Deployment")
        needed = find_needed_keys(NamespaceObjects(*(tuple(objects[kind]) for kind in _MAY_NEED)))
        assert not needed.unreadable
        read = frozenset[str]().union(*map(keys_of_pods, deployments))
        assert read <= needed.keys
        (model,) = objects[_MODEL]
        names = [item["name"] for item in model.get("status", {}).get("engines", ())]
        carried = [deployment_view(deployment).revision for deployment in deployments]
        revisions = map(revision_view, objects["ControllerRevision"])
        use = engine_use(model["metadata"]["name"], names, revisions, carried)
        for object_ in objects["InferenceEngine"]:
            if object_["spec"]["key"] in read:
                assert users_of(InferenceEngine.model_validate(object_), [use])

    @precondition(of_a_model)
    @invariant()
    def what_is_given_up_had_the_time_to_start(self) -> None:
        world = self.world
        if world.conditions()["RolledBack"][0] == "True":
            return
        if world.conditions()["Ready"][1] == "RolloutFailed":
            assert any(map(self._has_had_its_time, world.all("Pod")))

    @precondition(of_a_model)
    @invariant()
    def what_is_scaled_to_zero_has_no_canary(self) -> None:
        spec = InferenceModelSpec.model_validate(self.world.spec)
        classes = [
            serving_deployment["metadata"]["labels"][CLASS]
            for serving_deployment in self.world.serving_deployments()
        ]
        assert asks_for_pods(spec, classes) or not self.world.canaries()

    @precondition(of_a_model)
    @invariant()
    def what_is_rejected_gets_no_requests(self) -> None:
        world = self.world
        if world.conditions()["RolledBack"][0] == "True":
            deployments = map(deployment_view, world.serving_deployments())
            revisions = {
                deployment.revision for deployment in deployments if not deployment.available
            }
            assert world.status["revision"] not in revisions
            assert world.conditions()["Stalled"][0] == "True"
            assert world.status["lastFailure"]["revision"] == world.status["revision"]

    @precondition(of_a_model)
    @invariant()
    def what_serves_is_there_and_is_what_is_asked_for(self) -> None:
        yielding = {
            item["class"] for item in self.world.status.get("engines", ()) if "freedAt" in item
        }
        for item in self.world.status.get("serving", {}).get("classes", ()):
            deployment = self.world.find("Deployment", f"resnet-{item['class']}")
            if deployment is None:  # the model has moved to other classes at 0 replicas
                assert not item.get("replicas")
                assert not item.get("readyReplicas")
                continue
            if item["class"] not in yielding:
                assert deployment["spec"]["replicas"] == item.get("replicas", 0)
            name = f"resnet-{_revision(deployment)}"
            assert self.world.find("ControllerRevision", name)

    @precondition(of_a_model)
    @invariant()
    def an_autoscaler_and_the_operator_never_set_the_same_count(self) -> None:
        for entry in self.world.all("HorizontalPodAutoscaler"):
            assert self.world.spec["serving"]["autoscaling"]
            deployment = self.world.get("Deployment", entry["metadata"]["name"])
            assert deployment["spec"]["replicas"]
            assert FIELD_MANAGER not in count_managers(deployment["metadata"])

    @precondition(of_a_model)
    @invariant()
    def pods_yield_only_to_a_build_on_their_device_or_for_minutes(self) -> None:
        for item in self.world.status.get("engines", ()):
            if "freedAt" not in item:
                continue
            away = self.world.now - datetime.fromisoformat(item["freedAt"])
            assert away < YIELD_LIMIT or any(
                pod["metadata"]["labels"].get(JOB_NAME) == item["freedForJob"]
                and pod["spec"].get("nodeName") in item["freedOn"]
                and pod["status"]["phase"] != "Failed"
                and not never_ran(pod_view(pod))
                for pod in self.world.all("Pod")
            )
            assert self.world.conditions()["Stalled"][0] == "False", "what is refused takes none"

    @precondition(of_a_model)
    @invariant()
    def what_no_model_needs_holds_no_device(self) -> None:
        named = {item["name"] for item in self.world.status.get("engines", ())}
        owners = [
            running_job["metadata"]["ownerReferences"][0]
            for running_job in self.world.running_jobs()
        ]
        assert {owner["name"] for owner in owners if owner["kind"] == "InferenceEngine"} <= named

    @invariant()
    def one_job_of_each_runs_at_most(self) -> None:
        running = self.world.running_jobs()
        owners = [entry["metadata"]["ownerReferences"][0]["uid"] for entry in running]
        for obj in self._ours():
            refreshes = "refreshing" in (obj["status"].get("source") or {})
            stalled = (
                obj["kind"] == "InferenceEngine" and conditions_of(obj)["Stalled"][0] == "True"
            )
            assert owners.count(obj["metadata"]["uid"]) <= 1 + refreshes or stalled

    @precondition(of_a_model)
    @invariant()
    def a_wait_has_an_end(self) -> None:
        """Reconciling without a Job, an image probe or a rollout is a wait for the clock."""
        assert self.world.last
        failure = self.world.status.get("preparation", {}).get("failure")
        conditions = self.world.conditions()
        waits = conditions["Reconciling"][0] == "True" and failure and not a_job_runs(self)
        if waits and conditions["Ready"][1] == failure["reason"]:
            assert self.world.last.requeue_after

    @invariant()
    def history_is_bounded(self) -> None:
        assert len(self.world.all("ControllerRevision")) <= 7

    @invariant()
    def what_is_built_or_cannot_be_is_not_built_again(self) -> None:
        for engine in self.world.all("InferenceEngine"):
            uid, name = engine["metadata"]["uid"], engine["metadata"]["name"]
            made = sum(item.startswith(name) for item in self.world.made)
            before, spec, jobs = self.engines.get(uid, ({}, {}, 0))
            if "engine" in before.get("status", {}):
                assert conditions_of(engine)["Ready"] == ("True", "Built")
                assert made == jobs
            elif (
                before and conditions_of(before)["Stalled"][0] == "True" and spec == engine["spec"]
            ):
                assert conditions_of(engine)["Stalled"][0] == "True"
                assert made == jobs
            self.engines[uid] = (copy.deepcopy(engine), engine["spec"], made)

    # what they are read from

    def _ours(self) -> list[Json]:
        return [
            *([self.world.model] if self.world.model else ()),
            *self.world.all("InferenceEngine"),
        ]

    def _templates(self) -> dict[str, Any]:
        return {
            serving_deployment["metadata"]["name"]: serving_deployment["spec"]["template"]
            for serving_deployment in self.world.serving_deployments()
        }

    def _last_complete(self) -> str:
        """Return the last revision that rolled out with all its pods; empty: none has."""
        serving = self.world.status.get("serving", {})
        return str(serving.get("lastRolledOut") or serving.get("revision", ""))

    def lacks_pod(self, job: str) -> bool:
        return not self.world.pods_of(JOB_NAME, job)

    def _has_had_its_time(self, pod: Json) -> bool:
        since = pod_view(pod).scheduled_at
        return bool(since) and datetime.fromisoformat(since) + PROGRESS_DEADLINE <= self.world.now

    def _is_promoted(self, revision: str) -> bool:
        stored = self.world.get("ControllerRevision", f"resnet-{revision}")
        outcome = RevisionOutcome.read(stored["metadata"].get("annotations") or {})
        return outcome is not None and outcome.state == "Promoted"

    def _find_rejected(self) -> set[tuple[str, str]]:
        rejections = self.world.status.get("rejectedBackends", ())
        return {
            (rejection["backend"], rejection["inputsHash"])
            for rejection in rejections
            if "inputsHash" in rejection
        }


def _revision(obj: Json) -> str:
    return str(obj["metadata"]["labels"][REVISION])


def _names(objects: list[Json]) -> set[str]:
    return {str(item["metadata"]["name"]) for item in objects}


def _owns(owner: Json, obj: Json) -> bool:
    owners = obj["metadata"]["ownerReferences"]
    return owner["metadata"]["uid"] in [item["uid"] for item in owners]


def _has_crashed(pod: Json) -> bool:
    kinds = ("initContainerStatuses", "containerStatuses")
    return any("lastState" in item for kind in kinds for item in pod["status"].get(kind, ()))


@pytest.mark.timeout(600)  # to find the shortest of failing runs
@pytest.mark.parametrize("start", STARTS)
def test_whatever_happens(start: str) -> None:
    run_state_machine_as_test(
        lambda: Cluster(STARTS[start]()),  # type: ignore[arg-type] # whatever makes one
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=20,
            deadline=None,
            phases=[Phase.generate, Phase.shrink],
            derandomize=True,  # the same runs for everybody; hunt with more and others by hand
            suppress_health_check=list(HealthCheck),
        ),
    )
