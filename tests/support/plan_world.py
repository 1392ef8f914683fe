"""A model or an engine in a simulated cluster, with a test that plays users and administrators.

The operator works on the model and on all InferenceEngines. No pass of it, in no test, may take available pods away that
the user asks for.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final, Self

from enginewright.analysis.result import AnalysisResult
from enginewright.api.accelerator_class import AcceleratorClass
from enginewright.api.inference_engine import InferenceEngine, InferenceEngineStatus
from enginewright.api.inference_model import InferenceModel, InferenceModelSpec
from enginewright.api.inference_model_status import EngineReference, InferenceModelStatus, Prepared
from enginewright.controller.comparisons import Comparisons
from enginewright.controller.routing import ModelKey
from enginewright.kube.api import KubeApi
from enginewright.kube.errors import Forbidden
from enginewright.kube.resources import resource_of
from enginewright.manifests.field_managers import (
    FIELD_MANAGER,
    HANDOVER_MANAGER,
    METADATA_MANAGER,
)
from enginewright.manifests.labels import COMPONENT, REVISION, ROLLBACK, SERVE
from enginewright.manifests.labels import ENGINE as ENGINE_LABEL
from enginewright.manifests.labels import MODEL as MODEL_LABEL
from enginewright.manifests.outcome import RevisionOutcome
from enginewright.observed.deployments import DeploymentView, count_managers, deployment_view
from enginewright.observed.identities import AutoscalerView, BudgetView, ServiceView, claim_view
from enginewright.observed.jobs import JobView, job_view
from enginewright.observed.nodes import node_view
from enginewright.observed.pods import JOB_NAME, pod_view
from enginewright.observed.revisions import revision_view
from enginewright.observed.routes import route_view
from enginewright.plan.engines.build import BuildFacts
from enginewright.plan.engines.engine import (
    Ended,
    EnginePlan,
    EngineUse,
    engine_use,
    plan_engine,
    users_of,
)
from enginewright.plan.engines.wanted import build_hash
from enginewright.plan.plan import plan
from enginewright.plan.prepare.shared import hash_shared
from enginewright.plan.resolve.resolve import Target, resolve
from enginewright.plan.rollout.pod_counts import read_own_replicas
from enginewright.plan.types import (
    Config,
    EventIntent,
    Facts,
    Leader,
    MetadataIntent,
    ObjectRef,
    Plan,
    ReplicasHandover,
    StoreConfig,
)
from enginewright.plan.writes import Purpose, RefusedObject, order_writes, report_refusals
from enginewright_contract.images import ImageFacts
from enginewright_contract.reasons import Reason
from typing_extensions import override

from tests.support.fake_kube import at_once, timestamp
from tests.support.plan_objects import (
    CPU_IMAGE,
    ENGINE,
    GPU_IMAGE,
    MODEL,
    NAMESPACE,
    OPENVINO_IMAGE,
    RTX_IMAGE,
    Json,
    accelerator_class,
    engine_spec,
    image_facts,
    l4,
    make_object,
    node,
)
from tests.support.simulation import Simulation

# unless a test is about canaries
WITHOUT_CANARY: Final[Json] = {"canary": {"replicas": 0}}
CONFIG: Final = Config(
    namespace="enginewright",
    images={"cpu": CPU_IMAGE, "openvino": OPENVINO_IMAGE},
    image_pull_policy="IfNotPresent",
    image_pull_secrets=("registry",),
    store=StoreConfig("enginewright-store", "20Gi", "ReadWriteMany", None),
)
_KEY: Final = ModelKey(NAMESPACE, MODEL)


class World(Simulation):
    """Everything around the object that a test is about: its `subject`."""

    api: KubeApi  # as the operator reaches it

    def __init__(self, *classes: str | AcceleratorClass, **spec: Any) -> None:
        """Have a model and these AcceleratorClasses, those given by name of the backend cpu; one cpu if none is given."""
        super().__init__()
        self.api = self.kube
        source = {"uri": "https://models.example/resnet.onnx"}
        rollout = {**WITHOUT_CANARY, **spec.pop("rollout", {})}
        self._have(
            InferenceModel.kind,
            MODEL,
            {"source": source, "rollout": rollout, **spec},
            uid="0b9e6b6e-model",
        )
        self.jobs_meant = "prepare"
        self.made: list[str] = []  # Jobs, in the order of their creation
        self.config = CONFIG
        self.classes = [
            accelerator_class(device_class) if isinstance(device_class, str) else device_class
            for device_class in classes or ["cpu"]
        ]
        self.nodes = [node("node-1"), node("node-2")]
        self.has_routes = True  # the CRDs of the Gateway API
        self.has_device_claims = True  # the API of Dynamic Resource Allocation
        self.images = {
            CPU_IMAGE: image_facts("cpu"),
            OPENVINO_IMAGE: image_facts("openvino", "1.24.1", 25),
        }
        self.image_failures: dict[str, str] = {}
        self.turn = True  # the model's, to move to new runtime images
        self.leader: Leader | None = None  # another model whose Job prepares the same
        self.silent: set[str] = set()  # pods that have not answered for long
        self.orphaned: set[str] = set()  # engines whose requester needs them no more
        self.freed_elsewhere: set[str] = set()  # engines to which another model's pods yield
        self.events: list[EventIntent] = []  # about the subject
        self.rolled_back: list[str] = []  # reasons
        self.counted: list[Ended] = []  # Jobs of engines
        self.last: Plan | None = None  # for the subject
        self.comparisons = Comparisons(_analyze_at_once)
        self._refused: dict[tuple[Purpose, str, str], object] = {}  # at which time, by write

    @classmethod
    def of_engine(cls, *, ahead_of_time: bool = False, **build: Any) -> Self:
        """Return a cluster with an InferenceEngine that no model of it asked for."""
        world = cls()
        world.jobs_meant = ""
        world.remove(InferenceModel.kind, MODEL)
        spec = engine_spec(ahead_of_time=ahead_of_time, **build)
        world._have(InferenceEngine.kind, ENGINE, spec, uid="engine-1")
        return world

    def _have(self, kind: str, name: str, spec: Json, *, uid: str) -> None:
        obj = make_object(kind, name, NAMESPACE, spec=spec, status={})
        obj["metadata"] |= {"uid": uid, "annotations": {}}
        self.kube.put(obj)

    # what a test is about

    @property
    def model(self) -> Json | None:
        return self.find(InferenceModel.kind, MODEL)

    @property
    def subject(self) -> Json:
        return self.model or self.the(InferenceEngine.kind)

    @property
    def spec(self) -> Json:
        spec: Json = self.subject["spec"]
        return spec

    @property
    def status(self) -> Json:
        status: Json = self.subject["status"]
        return status

    @status.setter
    def status(self, status: Json) -> None:
        self.subject["status"] = status

    def children(self) -> list[Json]:
        """Return all objects except the model, in the order of their creation."""
        return [object_ for object_ in self.kube.objects.values() if object_ is not self.model]

    @property
    def generation(self) -> int:
        return int(self.subject["metadata"]["generation"])

    def condition(self, kind: str) -> Json:
        conditions = [item for item in self.status["conditions"] if item["type"] == kind]
        assert conditions, f"no condition {kind} in {self.status}"
        return dict(conditions[0])

    def conditions(self) -> dict[str, tuple[str, str]]:
        return conditions_of(self.subject)

    def message(self) -> str:
        return str(self.condition("Ready")["message"])

    def event_reasons(self) -> list[str]:
        return [event.reason for event in self.events]

    # what the operator does

    @override
    def pass_once(self) -> bool:
        before = self.kube.writes
        if self.model:
            self._carry_out(self.model, self._plan, self.facts())
        for engine in self.all(InferenceEngine.kind):
            facts = self.build_facts(engine)
            if plan_engine(facts).removed:
                self.remove(InferenceEngine.kind, engine["metadata"]["name"])
            else:
                self._carry_out(engine, plan_engine, facts)
        return self.kube.writes != before

    def _plan(self, facts: Facts) -> Plan:
        """Plan like the controller, which makes no comparison twice."""
        return at_once(self.comparisons.plan(_KEY, plan, facts))

    def operator_restarts(self) -> Self:
        self.verdicts, self.progress, self.silent = {}, {}, set()
        self.measurements = {}
        return self.settle()

    def facts(self) -> Facts:
        """Collect the model's observed state like the controller."""
        assert self.model
        deployments = tuple(map(deployment_view, self.all("Deployment")))
        jobs = self._jobs_of(self.model)
        claim = self.find("PersistentVolumeClaim", self.config.store.claim)
        engines = {
            entry["metadata"]["name"]: InferenceEngine.model_validate(entry)
            for entry in self.all(InferenceEngine.kind)
        }
        facts = Facts(
            model=InferenceModel.model_validate(self.model),
            config=self.config,
            now=self.now,
            classes=tuple(
                sorted(self.classes, key=lambda device_class: device_class.metadata.name)
            ),
            nodes=tuple(map(node_view, self.nodes)),
            images=self.images,
            image_failures=self.image_failures,
            may_move=self.turn,
            store=claim_view(claim) if claim else None,
            jobs=jobs,
            pods=tuple(pod_view(pod) for pod in self.all("Pod") if _has_label(pod, MODEL_LABEL)),
            deployments=tuple(deployment for deployment in deployments if deployment.is_serving),
            canaries=tuple(deployment for deployment in deployments if deployment.is_canary),
            trials=tuple(deployment for deployment in deployments if deployment.is_trial),
            budgets=tuple(map(BudgetView.from_object, self.all("PodDisruptionBudget"))),
            autoscalers=tuple(map(AutoscalerView.from_object, self.all("HorizontalPodAutoscaler"))),
            services=tuple(map(ServiceView.from_object, self.all("Service"))),
            routes=tuple(map(route_view, self.all("HTTPRoute"))) if self.has_routes else None,
            has_device_claims=self.has_device_claims,
            revisions=tuple(map(revision_view, self.all("ControllerRevision"))),
            engines=engines,
            find_built_from=lambda key: [
                engine for engine in engines.values() if engine.spec.prepared_key == key
            ],
            find_recorded=lambda record: [
                engine
                for engine in engines.values()
                if record in [prepared.record_hash for prepared in engine.status.prepared]
            ],
            engine_pods={
                item["name"]: tuple(
                    pod_view(pod)
                    for pod in self.all("Pod")
                    if pod["metadata"]["labels"].get(ENGINE_LABEL) == item["name"]
                )
                for item in self.model["status"].get("engines", ())
            },
            verdicts={pod: said for pod, said in self.verdicts.items() if self.find("Pod", pod)},
            measurements=dict(self.measurements),
            orphaned_engines=frozenset(self.orphaned),
            freed_elsewhere=frozenset(self.freed_elsewhere),
            silent=frozenset(self.silent),
        )
        target = resolve(facts)
        if self.leader is None or not isinstance(target, Target):
            return facts
        return replace(
            facts, leaders={hash_shared(facts.model, facts.config, target): (self.leader,)}
        )

    def build_facts(self, engine: Json) -> BuildFacts:
        """Collect an InferenceEngine's observed state like the controller."""
        jobs = self._jobs_of(engine)
        names = {job.name for job in jobs}
        read = InferenceEngine.model_validate(engine)
        claim = self.find("PersistentVolumeClaim", self.config.store.claim)
        return BuildFacts(
            engine=read,
            config=self.config,
            now=self.now,
            nodes=tuple(map(node_view, self.nodes)),
            jobs=jobs,
            pods=tuple(
                pod_view(pod)
                for pod in self.all("Pod")
                if pod["metadata"]["labels"].get(JOB_NAME) in names
            ),
            progress=dict(self.progress),
            references=tuple(
                EngineReference.model_validate(item)
                for item in (self.model["status"].get("engines", ()) if self.model else ())
                if item["name"] == engine["metadata"]["name"]
            ),
            users=users_of(read, self._uses()),
            prepared=self._get_prepared(read),
            store=self.config.store.describe(NAMESPACE, claim_view(claim) if claim else None),
        )

    def _get_prepared(self, engine: InferenceEngine) -> tuple[Prepared, ...]:
        """Return the prepared model of the model, if it refers to an engine."""
        status = self.model["status"] if self.model else {}
        names = {item["name"] for item in status.get("engines", ())}
        prepared = status.get("prepared") if engine.metadata.name in names else None
        return (Prepared.model_validate(prepared),) if prepared else ()

    def _uses(self) -> Iterable[EngineUse]:
        """Yield which engines the model uses."""
        if self.model:
            references = self.model["status"].get("engines", ())
            revisions = map(revision_view, self.all("ControllerRevision"))
            yield engine_use(MODEL, (reference["name"] for reference in references), revisions)

    def _jobs_of(self, owner: Json) -> tuple[JobView, ...]:
        """Return the Jobs of an owner, those without a pod with what their last Event says."""
        said = {event["involvedObject"]["uid"]: event["message"] for event in self.all("Event")}
        views = map(job_view, self.all("Job"))
        return tuple(
            view
            if self.pods_of(JOB_NAME, view.name)
            else replace(view, refused=said.get(view.uid, ""))
            for view in views
            if owner["metadata"]["uid"] in view.owners.values()
        )

    def _carry_out(
        self, obj: Json, decide: Callable[[Any], Plan], facts: Facts | BuildFacts
    ) -> None:
        planned, writes, serving = decide(facts), self.kube.writes, self._serving()
        is_subject = obj is self.subject
        status = InferenceModelStatus if isinstance(facts, Facts) else InferenceEngineStatus
        status.model_validate(planned.status)
        try:
            refusals = self._write(planned)
            desired = report_refusals(planned, refusals, obj.get("status", {}), self.now)
            if desired.status != obj.get("status", {}):
                at_once(self.api.apply_status({**obj, "status": desired.status}))
        finally:
            if isinstance(facts, Facts):
                self._refuse_loss(serving, facts.model.spec)
                self._refuse_reset(serving, facts.model.spec)
                self._refuse_downtime(serving, facts.model.spec, planned.status)
        if self.kube.writes == writes:
            assert decide(facts) == planned, "the same facts give the same plan"
            assert refusals or not planned.events, "an Event reports a change"
        if is_subject:
            self.last = desired
            self.events += desired.events
            self.rolled_back += [desired.rolled_back] if desired.rolled_back else []
        if isinstance(desired, EnginePlan) and desired.ended:
            self.counted.append(desired.ended)

    def _write(self, plan: Plan) -> list[RefusedObject]:
        """Carry out all writes like the operator, each apart; return what was refused."""
        refusals: list[RefusedObject] = []
        absent: set[tuple[str, str]] = set()
        for intent in plan.metadata:
            self._set_metadata(intent)
        for planned in order_writes(plan):
            name = (planned.obj["kind"], planned.obj["metadata"]["name"])
            write = partial(self._apply, planned.obj)
            if not planned.is_due(absent):
                absent |= set() if self.find(*name) else {name}
            elif refusal := self._try(planned.purpose, *name, write):
                refusals.append(refusal)
                absent |= {name} if refusal.absent else set()
            else:
                absent.discard(name)
        for handover in plan.hand_over:
            self._hand_over(handover)
        for ref in plan.delete:
            write = partial(self._delete, ref)
            if refusal := self._try(Purpose.REMOVAL, ref.kind, ref.name, write):
                refusals.append(refusal)
        return refusals

    def _try(
        self, purpose: Purpose, kind: str, name: str, write: Callable[[], None]
    ) -> RefusedObject | None:
        """Make a write, unless it was refused at this time already."""
        key = purpose, kind, name
        try:
            if self._refused.get(key) != self.now:
                write()
                return None
        except Forbidden:
            self._refused[key] = self.now
        return RefusedObject(purpose, kind, name, "refused", absent=self.find(kind, name) is None)

    def _apply(self, desired: Mapping[str, Any]) -> None:
        """Apply an object like the executor: unchanged objects and existing Jobs are not written."""
        metadata = desired["metadata"]
        assert metadata.get("namespace") == NAMESPACE, desired
        existing = self.find(desired["kind"], metadata["name"])
        if existing is None:
            at_once(self.api.apply(desired))
            self.made += [metadata["name"]] if desired["kind"] == "Job" else []
        elif desired["kind"] != "Job" and not _is_as(existing, desired):
            at_once(self.api.apply(desired))

    def _set_metadata(self, intent: MetadataIntent) -> None:
        """Set labels and annotations as the executor does."""
        existing = self.get(intent.kind, intent.name)
        metadata = existing["metadata"]
        assert metadata["uid"] == intent.uid
        if (
            intent.labels.items() <= metadata.get("labels", {}).items()
            and intent.annotations.items() <= metadata.get("annotations", {}).items()
        ):
            return
        at_once(self.api.apply(intent.manifest(), manager=METADATA_MANAGER))

    def _hand_over(self, handover: ReplicasHandover) -> None:
        """Have a second manager own a Deployment's count, as the executor does."""
        metadata = {"namespace": handover.namespace, "name": handover.name, "uid": handover.uid}
        body = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata}
        body["spec"] = {"replicas": handover.replicas}
        at_once(self.api.apply(body, force=False, manager=HANDOVER_MANAGER))

    def _delete(self, ref: ObjectRef) -> None:
        assert ref.namespace == NAMESPACE, ref
        if existing := self.find(ref.kind, ref.name):
            resource = resource_of(ref.api_version, ref.kind)
            uid = existing["metadata"]["uid"]
            at_once(self.api.delete(resource, ref.namespace, ref.name, uid=uid))

    # what must not be lost

    def _serving(self) -> list[DeploymentView]:
        return list(map(deployment_view, self.serving_deployments()))

    def _refuse_loss(self, before: list[DeploymentView], spec: InferenceModelSpec) -> None:
        """Refuse that fewer pods than before are available, unless the user asks for fewer, or allows it by Recreate."""
        engines = self.status.get("engines", ()) if spec.rollout.strategy == "Recreate" else ()
        yielding = {engine["class"] for engine in engines if _yields(engine)}
        counts = {view.name: view.desired for view in self._serving()}
        available = {
            view.name: min(view.available, view.desired)  # others are on their way out already
            for view in before
            if view.accelerator_class not in yielding and self._is_good(view.revision)
        }
        kept = sum(min(count, counts.get(name, 0)) for name, count in available.items())
        asked = _count_asked(spec, {view.accelerator_class: view.desired for view in before})
        in_place = spec.rollout.strategy == "InPlace"  # in which the canary uses their devices
        lent = sum(canary["spec"]["replicas"] for canary in self.canaries()) if in_place else 0
        assert kept >= min(sum(available.values()), asked) - lent, (available, counts, asked)

    def _refuse_reset(self, before: list[DeploymentView], spec: InferenceModelSpec) -> None:
        """Refuse that an autoscaled Deployment has another count than before, unless one of them is 0."""
        counts = {view.name: view.desired for view in self._serving()}
        autoscaled = spec.serving.autoscaling is not None
        for view in before:
            after = counts.get(view.name, 0)
            stopped = read_own_replicas(spec).get(view.accelerator_class, spec.replicas) == 0
            if autoscaled and view.desired and after and not stopped:
                assert after == view.desired, f"{view.name} had {view.desired} and has {after}"

    def _is_good(self, revision: str) -> bool:
        """Return whether a revision is desired, or has served with all its pods: others may go."""
        conditions = conditions_of(self.subject)
        if revision == self.status.get("revision"):
            return conditions.get("RolledBack", ("False", ""))[0] != "True"
        stored = self.find("ControllerRevision", f"{MODEL}-{revision}")
        outcome = stored and RevisionOutcome.read(stored["metadata"].get("annotations") or {})
        active = (self.status.get("active") or {}).get("revision")
        return revision == active or bool(outcome and outcome.state == "Promoted")

    def _refuse_downtime(
        self, before: list[DeploymentView], spec: InferenceModelSpec, planned: Json
    ) -> None:
        """Assert that Recreate stops no serving revision for one that neither serves nor is to, unless a user rolls it back."""
        carried = {view.revision for view in before}
        others = {view.revision for view in self._serving()} - carried
        if planned.get("target", {}).get("phase", "Promoting") == "Promoting":
            others -= {planned.get("revision")}
        rolled_back = self.subject["metadata"]["annotations"].get(ROLLBACK, "").partition(" ")[0]
        if spec.rollout.strategy == "Recreate" and others and rolled_back not in carried:
            ready = self.ready_revisions()
            assert not carried & ready or others <= ready, (carried, others, ready)

    def ready_revisions(self) -> set[str]:
        """Return the revisions of the pods that are ready to serve."""
        pods = (pod_view(pod) for pod in self.all("Pod"))
        serving = [pod for pod in pods if pod.label(COMPONENT) == SERVE and not pod.leaving]
        return {pod.label(REVISION) for pod in serving if pod.ready}

    # what users do

    def edit(self, **spec: Any) -> Self:
        """Change the spec as kubectl would; None removes a field."""
        if "rollout" in spec:
            spec["rollout"] = {**WITHOUT_CANARY, **(spec["rollout"] or {})}
        changed = {k: v for k, v in {**self.spec, **spec}.items() if v is not None}
        if changed != self.spec:
            self.subject["spec"] = changed
            self.subject["metadata"]["generation"] += 1
        return self.settle()

    def build_changes(self, **build: Any) -> Self:
        """Change spec.build of the InferenceEngine, as a model or a user would."""
        return self.edit(build={**self.spec["build"], **build})

    def annotate(self, name: str, value: str | None) -> Self:
        """Set an annotation, which is no change of the spec; None removes it."""
        annotations = self.subject["metadata"]["annotations"]
        annotations.pop(name, None)
        if value is not None:
            annotations[name] = value
        return self.settle()

    # what administrators do

    def has_gpus(self, **spec: Any) -> Self:
        """Have a class of GPUs in the cluster, and images for it."""
        self.classes = [l4(**spec)]
        self.config = replace(
            self.config, images={**self.config.images, "gpu": GPU_IMAGE, "rtx": RTX_IMAGE}
        )
        rtx = image_facts("rtx").model_copy(update={"backends": {"tensorrt-rtx": "1.7.1.116"}})
        gpu = image_facts("gpu").model_copy(update={"backends": {"cuda": "13"}})
        self.images = {**self.images, RTX_IMAGE: rtx, GPU_IMAGE: gpu}
        return self

    def node_goes_down(self, name: str = "node-1") -> Self:
        """Have a node's kubelet be silent for long: the node is NotReady, and its pods are not ready."""
        return self._set_node(name, "Unknown")

    def node_comes_back(self, name: str = "node-1") -> Self:
        """Have a node's kubelet speak again, before that of its pods."""
        return self._set_node(name, "True")

    def _set_node(self, name: str, ready: str) -> Self:
        (node,) = (node for node in self.nodes if node["metadata"]["name"] == name)
        at = timestamp(self.now)
        node["status"]["conditions"] = [
            {"type": "Ready", "status": ready, "lastTransitionTime": at}
        ]
        for pod in self.all("Pod"):
            if pod["spec"].get("nodeName") == name and pod_view(pod).ready:
                for condition in pod["status"]["conditions"]:
                    if condition["type"] == "Ready":
                        condition.update(status="False", lastTransitionTime=at)
                self.kube.count_change(pod)
        return self.settle()

    def new_runtime_image(
        self,
        image: str = "registry.example/cpu:2",
        variant: str = "cpu",
        *,
        like: ImageFacts | None = None,
    ) -> Self:
        """Have the chart name another image, which is `like` another one, or not probed yet."""
        self.config = replace(self.config, images={**self.config.images, variant: image})
        if like:
            self.images = {**self.images, image: like}
        return self.settle()

    def claim_has(self, capacity: str) -> Self:
        """Have the volume of the store's claim be that large."""
        claim = self.get("PersistentVolumeClaim", self.config.store.claim)
        self.set_status(claim, {"phase": "Bound", "capacity": {"storage": capacity}})
        return self.settle()

    # what comes of engines

    def engine_fails(self, reason: Reason) -> Self:
        """Have the one InferenceEngine be one that cannot be built."""
        engine = self.the(InferenceEngine.kind)
        engine["status"] = {
            "buildHash": build_hash(InferenceEngine.model_validate(engine).spec.build),
            "failure": {"reason": reason, "message": f"{reason}!", "lasting": True},
        }
        return self.settle()

    def engine_built(self, *, total: int = 105, accelerated: int = 105, **facts: Any) -> Self:
        """Have every InferenceEngine be built."""
        for engine in self.all(InferenceEngine.kind):
            engine["status"] = {
                "engine": {
                    "sha256": "e" * 64,
                    "sizeBytes": 3_450_000,
                    "buildMilliseconds": 512,
                    "computeCapabilities": ["8.9"],
                    "nodesTotal": total,
                    "nodesAccelerated": accelerated,
                    **facts,
                }
            }
        return self.settle()


async def _analyze_at_once(
    compare: Callable[..., AnalysisResult], *arguments: object
) -> AnalysisResult:
    return compare(*arguments)


def conditions_of(obj: Json) -> dict[str, tuple[str, str]]:
    """Return status and reason by condition type."""
    conditions = obj["status"].get("conditions") or ()
    return {
        condition["type"]: (condition["status"], condition["reason"]) for condition in conditions
    }


def serving(**spec: Any) -> World:
    """Return a serving model, with two replicas unless the spec sets another number."""
    return World(**{"replicas": 2, **spec}).settle().job_succeeds().all_available()


def _count_asked(spec: InferenceModelSpec, there: Mapping[str, int]) -> int:
    """Return the pods that a user asks for where there are any: the total, and counts of classes.

    With autoscaling they ask for as many as there are, on classes that are not to have none.
    """
    own = read_own_replicas(spec)
    names = {accelerator.class_name for accelerator in spec.accelerators}
    if spec.serving.autoscaling:
        selected = [name for name in names or there if own.get(name, spec.replicas)]
        return sum(there.get(name, 1) for name in selected)
    shared = spec.replicas if not names or names - own.keys() else 0
    return shared + sum(count for name, count in own.items() if name in there)


def _is_as(actual: Json, desired: Mapping[str, Any]) -> bool:
    if "replicas" not in desired.get("spec", ()) and FIELD_MANAGER not in count_managers(
        actual["metadata"]
    ):
        # a count that others own may be any
        spec = {key: item for key, item in actual.get("spec", {}).items() if key != "replicas"}
        actual = {**actual, **({"spec": spec} if "spec" in actual else {})}
    metadata = {"labels", "annotations", "ownerReferences"} & desired["metadata"].keys()
    return all(actual.get(part) == desired[part] for part in desired.keys() - {"metadata"}) and all(
        actual["metadata"].get(part) == desired["metadata"][part] for part in metadata
    )


def _has_label(obj: Json, label: str) -> bool:
    return label in obj["metadata"]["labels"]


def _yields(engine: Json) -> bool:
    return "freedAt" in engine and not engine.get("returned")
