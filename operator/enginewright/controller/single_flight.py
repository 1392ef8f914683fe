"""Which models of a namespace share a preparation: who leads, and when those that follow are planned again.

The state is in Jobs and statuses. In memory are a copy of what is read from them, so that a reconcile searches
no models, and the Jobs that are being created.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeAlias

from typing_extensions import override

from enginewright.api.inference_model import InferenceModel
from enginewright.controller.cache import ObjectCache
from enginewright.controller.parse import parse_objects
from enginewright.controller.routing import ModelKey
from enginewright.kube.resources import INFERENCE_MODELS, JOBS
from enginewright.manifests.labels import SHARED_PREPARATION
from enginewright.observed.jobs import JobView, job_view
from enginewright.observed.preparations import PreparationView, preparation_view
from enginewright.plan.prepare.shared import PATIENCE, FlightMember, leaders
from enginewright.plan.types import Leader, Plan

_Name: TypeAlias = tuple[str, str]  # namespace, name
_Shared: TypeAlias = tuple[str, str]  # namespace, shared hash


@dataclass(frozen=True)
class _SharedJob:
    """A prepare Job whose result several models may take over."""

    model: str  # name of its owner
    owner: str  # uid of its owner
    job: JobView


@dataclass(frozen=True)
class _Start:
    """A Job that is being created, or may have been."""

    shared_hash: str
    since: datetime


@dataclass
class _Flight:
    views: dict[str, PreparationView] = field(default_factory=dict)  # by model
    jobs: dict[str, _SharedJob] = field(default_factory=dict)  # by name

    def __bool__(self) -> bool:
        return bool(self.views or self.jobs)


class SingleFlight:
    """The preparations of all models in the cache, which must still be empty."""

    def __init__(
        self,
        cache: ObjectCache,
        *,
        queue: Callable[[ModelKey], None] = lambda _key: None,
        now: Callable[[], datetime],
    ) -> None:
        """Create it; `queue` plans a model again."""
        self._cache = cache
        self._queue = queue
        self._now = now
        self._flights: dict[_Shared, _Flight] = {}
        self._hashes: dict[_Name, str] = {}  # of models' views
        self._job_hashes: dict[_Name, str] = {}
        self._starts: dict[_Name, _Start] = {}  # by model
        # models that are about to be planned, because one of them may lead
        self._called: dict[_Name, _Shared] = {}
        cache.listen(INFERENCE_MODELS, self._model_observed)
        cache.listen(JOBS, self._job_observed)

    def leaders(self, key: ModelKey) -> Mapping[str, tuple[Leader, ...]]:
        """Return the leaders other than this model, by shared hash; those of the present, at each access."""
        return _Leaders(self, key)

    def find_followed(self, model: InferenceModel) -> InferenceModel | None:
        """Return the model whose result this one waits for, if there is one and it exists."""
        preparation = model.status.preparation
        if preparation is None or not preparation.leader:
            return None
        leader = self._cache.get(INFERENCE_MODELS, model.metadata.namespace, preparation.leader)
        return next(iter(parse_objects(InferenceModel, (leader,) if leader else ())), None)

    def on_planned(self, key: ModelKey, plan: Plan) -> None:
        """Record the Job that a plan creates, before another model is planned."""
        called = self._called.pop(key, None)
        before = self._starts.pop(key, None)
        for entry in plan.apply:
            if entry["kind"] == JOBS.kind:
                annotations = entry["metadata"].get("annotations") or {}
                if shared := annotations.get(SHARED_PREPARATION):
                    again = before is not None and before.shared_hash == shared
                    since = before.since if before and again else self._now()
                    self._starts[key] = _Start(shared, since)
        if before:
            self._wake_if_free((key.namespace, before.shared_hash), key.name)
        elif called and key not in self._starts:
            self._give_way(called, key.name)

    def on_reconciled(self, key: ModelKey, *, unsure: bool = False) -> None:
        """Record that a plan was carried out, so that what it created is in the cache, or failed.

        `unsure`: a write may have been executed although it failed. It is repeated, so that the model leads
        until then, for `PATIENCE` at most.
        """
        if called := self._called.pop(key, None):  # it was not planned
            self._give_way(called, key.name)
        start = self._starts.get(key)
        if start is None or (unsure and self._now() < start.since + PATIENCE):
            return
        del self._starts[key]
        self._wake_if_free((key.namespace, start.shared_hash), key.name)

    def of(self, shared: _Shared, but: str) -> tuple[Leader, ...]:
        """Return the leaders of a preparation, except one model; else an earlier model that is about to lead."""
        if current := leaders(self._members(shared, but), self._now()):
            return current
        flight, own = self._flights.get(shared), self._cache.get(INFERENCE_MODELS, shared[0], but)
        if flight is None or own is None:
            return ()
        turn = (str(own["metadata"].get("creationTimestamp") or ""), but)
        earlier = [
            view
            for view in flight.views.values()
            if view.waits
            and self._called.get((shared[0], view.name)) == shared
            and (view.created, view.name) < turn
        ]
        first = min(earlier, key=lambda view: (view.created, view.name), default=None)
        return (Leader(first.name, has_fetched=False),) if first else ()

    def list_shared(self, namespace: str) -> list[str]:
        """Return the shared hashes of a namespace."""
        starting = (start.shared_hash for (at, _), start in self._starts.items() if at == namespace)
        observed = (flight for at, flight in self._flights if at == namespace)
        return sorted({*starting, *observed})

    def _members(self, shared: _Shared, but: str) -> Iterator[FlightMember]:
        namespace, digest = shared
        flight = self._flights.get(shared) or _Flight()
        jobs: dict[str, list[JobView]] = {}
        for job in flight.jobs.values():
            owner = self._cache.get(INFERENCE_MODELS, namespace, job.model)
            if owner and owner["metadata"]["uid"] == job.owner:
                jobs.setdefault(job.model, []).append(job.job)
        leading = {name for name, view in flight.views.items() if view.leads}
        starting = {
            name
            for (at, name), start in self._starts.items()
            if (at, start.shared_hash) == (namespace, digest)
        }
        for name in (leading | jobs.keys() | starting) - {but}:
            model = self._cache.get(INFERENCE_MODELS, namespace, name)
            if model is None or model["metadata"].get("deletionTimestamp"):
                continue
            yield FlightMember(
                name=name,
                created=str(model["metadata"].get("creationTimestamp") or ""),
                preparation=flight.views.get(name),
                jobs=tuple(jobs.get(name, ())),
                starts=name in starting,
            )

    def _model_observed(self, name: _Name, obj: Mapping[str, Any] | None) -> None:
        namespace, model = name
        view = preparation_view(obj) if obj is not None else None
        old = self._hashes.pop(name, "")
        before = self._flights[namespace, old].views.pop(model) if old else None
        if view is not None:
            self._hashes[name] = view.shared_hash
            flight = self._flights.setdefault((namespace, view.shared_hash), _Flight())
            flight.views[model] = view
        if old and not self._flights[namespace, old]:
            del self._flights[namespace, old]
        if obj is None:
            self._starts.pop(name, None)
            self._called.pop(name, None)
        if old and (view is None or view.shared_hash != old):
            self._give_way((namespace, old), model)
        if view == before:
            return
        concerned = {item.shared_hash for item in (before, view) if item and not item.waits}
        for item in sorted(concerned):
            if _news(item, before, view):
                self._wake((namespace, item))

    def _job_observed(self, name: _Name, obj: Mapping[str, Any] | None) -> None:
        namespace, job = name
        old = self._job_hashes.pop(name, "")
        before = self._flights[namespace, old].jobs.pop(job) if old else None
        after = _read_shared_job(obj) if obj is not None else None
        if after is not None:
            self._job_hashes[name] = after.job.shared_hash
            flight = self._flights.setdefault((namespace, after.job.shared_hash), _Flight())
            flight.jobs[job] = after
        if old and not self._flights[namespace, old]:
            del self._flights[namespace, old]
        if before is not None:
            self._wake_if_free((namespace, old), before.model)

    def _wake_if_free(self, shared: _Shared, model: str) -> None:
        """Have the models planned that wait, unless the one that led does so still."""
        if all(leader.name != model for leader in self.of(shared, "")):
            self._wake(shared)

    def _wake(self, shared: _Shared) -> None:
        """Have the models planned that wait, the first by creation and name first: it may lead."""
        flight = self._flights.get(shared)
        waiting = [view for view in flight.views.values() if view.waits] if flight else []
        for view in sorted(waiting, key=lambda item: (item.created, item.name)):
            key = ModelKey(shared[0], view.name)
            self._called[key] = shared
            self._queue(key)

    def _give_way(self, shared: _Shared, name: str) -> None:
        """Have those planned again that let a model go first, which does not lead."""
        flight = self._flights.get(shared)
        for view in list(flight.views.values()) if flight else ():
            if view.waits and view.leader == name:
                self._queue(ModelKey(shared[0], view.name))


class _Leaders(Mapping[str, tuple[Leader, ...]]):
    """The leaders of each preparation of a namespace, computed on access: a plan reads those of one."""

    def __init__(self, flights: SingleFlight, key: ModelKey) -> None:
        self._flights = flights
        self._key = key

    @override
    def __getitem__(self, shared: str) -> tuple[Leader, ...]:
        return self._flights.of((self._key.namespace, shared), self._key.name)

    @override
    def __iter__(self) -> Iterator[str]:
        return iter(self._flights.list_shared(self._key.namespace))

    @override
    def __len__(self) -> int:
        return len(self._flights.list_shared(self._key.namespace))


def _news(shared: str, before: PreparationView | None, view: PreparationView | None) -> bool:
    """Return whether those that wait for a preparation may now do something else, or say something else.

    They do not say which stage runs, so that a stage's end plans no other model, except that of the first:
    those that come later read the sources again.
    """
    old = before if before and before.shared_hash == shared else None
    new = view if view and view.shared_hash == shared else None
    if old is None or new is None:
        return True
    return (old.leads, old.failure) != (new.leads, new.failure)


def _read_shared_job(obj: Mapping[str, Any]) -> _SharedJob | None:
    job = job_view(obj)
    if not job.shared_hash:
        return None
    for item in obj["metadata"].get("ownerReferences") or ():
        if item["kind"] == INFERENCE_MODELS.kind:
            return _SharedJob(item["name"], item["uid"], job)
    return None
