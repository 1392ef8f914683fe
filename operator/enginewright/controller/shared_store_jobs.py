"""Which Jobs of other namespaces make what a model or an InferenceEngine needs, where namespaces share a part of a bucket.

What runs is read from the cache. In memory are those that wait, who ask again after a restart, and Jobs that are being
created.
"""

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias

from typing_extensions import override

from enginewright.api.inference_engine import InferenceEngine
from enginewright.api.inference_model import InferenceModel
from enginewright.controller.cache import ObjectCache
from enginewright.controller.observe import POD
from enginewright.controller.routing import EngineKey, ModelKey
from enginewright.kube.resources import JOBS, PODS
from enginewright.manifests.labels import ENGINE, MAKES, MODEL
from enginewright.observed.jobs import JobView, job_view
from enginewright.observed.pods import of_job
from enginewright.plan.pods import has_begun
from enginewright.plan.shared_store import MakingJob, awaited
from enginewright.plan.types import Elsewhere, Plan, StoreConfig

_OWNERS: Final = (InferenceModel.kind, InferenceEngine.kind)
_Key: TypeAlias = ModelKey | EngineKey
_Owner: TypeAlias = tuple[str, str, str]  # kind, namespace, name
_Name: TypeAlias = tuple[str, str]  # namespace, name
_Made: TypeAlias = tuple[str, str]  # part of the bucket, hash of the artefact


class SharedStoreJobs:
    """The Jobs of all groups of namespaces in the cache, which must still be empty."""

    def __init__(
        self,
        cache: ObjectCache,
        store: StoreConfig,
        *,
        model: Callable[[ModelKey], None] = lambda _key: None,
        engine: Callable[[EngineKey], None] = lambda _key: None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Create it; `model` and `engine` plan one again."""
        self._cache = cache
        self._store = store
        self._queue_model = model
        self._queue_engine = engine
        self._now = now
        self._jobs: dict[_Made, dict[_Name, tuple[str, JobView]]] = {}  # with the owner
        self._made: dict[_Name, _Made] = {}  # by Job
        self._starts: dict[_Owner, dict[_Made, datetime]] = {}  # Jobs that are being created
        self._waiting: dict[_Owner, tuple[_Made, ...]] = {}
        self._planned: set[_Owner] = set()  # in the reconcile that goes on
        if store.groups:
            cache.listen(JOBS, self._job_observed)

    def elsewhere(self, namespace: str) -> Mapping[str, Elsewhere]:
        """Return the Jobs that a namespace waits for by hash of the artefact; those of the present, at each access."""
        return _Elsewhere(self, namespace) if self._store.group(namespace) else {}

    def made(self, namespace: str) -> list[str]:
        """Return the hashes of what is being made in the store of a namespace."""
        part = self._store.part(namespace)
        starting = (each for starts in self._starts.values() for each in starts)
        return sorted({made for at, made in (*self._jobs, *starting) if at == part})

    def find(self, namespace: str, artifact: str) -> Elsewhere | None:
        """Return the Job of another namespace that makes an artefact; None: it is not waited for."""
        made = (self._store.part(namespace), artifact)
        return awaited(self._making(made), namespace, self._now())

    def planned(self, key: _Key, plan: Plan) -> None:
        """Take note of what a plan creates or waits for, before another one is planned."""
        if self._store.group(key.namespace) is None:
            return
        owner, part = _owner(key), self._store.part(key.namespace)
        self._planned.add(owner)
        self._starts.pop(owner, None)
        self._waiting.pop(owner, None)
        if plan.awaits:
            self._waiting[owner] = tuple((part, each) for each in plan.awaits)
        jobs = (each["metadata"] for each in plan.apply if each["kind"] == JOBS.kind)
        made = ((each.get("annotations") or {}).get(MAKES) for each in jobs)
        if starts := {(part, each): self._now() for each in made if each}:
            self._starts[owner] = starts

    def done(self, key: _Key) -> None:
        """Take note that a reconcile has ended: what it created is in the cache, or it failed."""
        owner = _owner(key)
        if owner not in self._planned:
            self._waiting.pop(owner, None)
        self._planned.discard(owner)
        for made in self._starts.pop(owner, {}):
            if not any(namespace == key.namespace for namespace, _ in self._jobs.get(made, ())):
                self._wake(made)

    def _making(self, made: _Made) -> Iterator[MakingJob]:
        for (namespace, _), (owner, job) in self._jobs.get(made, {}).items():
            created = datetime.fromisoformat(job.created)
            ended = datetime.fromisoformat(job.ended_at) if job.succeeded else None
            yield MakingJob(namespace, owner, created, runs=self._runs(job), succeeded=ended)
        for (kind, namespace, name), starts in self._starts.items():
            if since := starts.get(made):
                yield MakingJob(namespace, f"{kind} {name}", since)

    def _runs(self, job: JobView) -> bool:
        if model := job.label(MODEL):
            observed = self._cache.of_model(PODS, job.namespace, model)
        else:
            observed = self._cache.of_engine(PODS, job.namespace, job.label(ENGINE))
        pods = of_job(self._cache.views(POD, observed), job.name)
        return any(has_begun(each) and not each.deleting for each in pods)

    def _job_observed(self, name: _Name, obj: Mapping[str, Any] | None) -> None:
        before = self._made.pop(name, None)
        if before:
            del self._jobs[before][name]
            if not self._jobs[before]:
                del self._jobs[before]
        artifact = (obj["metadata"].get("annotations") or {}).get(MAKES) if obj else None
        job = job_view(obj) if obj and artifact else None
        if obj and artifact and job and (job.proceeds or job.succeeded):
            made = self._made[name] = (self._store.part(name[0]), artifact)
            self._jobs.setdefault(made, {})[name] = (_named_owner(obj), job)
        if before and not (job and job.proceeds):
            self._wake(before)

    def _wake(self, made: _Made) -> None:
        """Have those planned again that wait for an artefact."""
        for (kind, namespace, name), waits in tuple(self._waiting.items()):
            if made not in waits:
                continue
            if kind == InferenceModel.kind:
                self._queue_model(ModelKey(namespace, name))
            else:
                self._queue_engine(EngineKey(namespace, name))


class _Elsewhere(Mapping[str, Elsewhere]):
    """Computed on access, since a plan reads one."""

    def __init__(self, jobs: SharedStoreJobs, namespace: str) -> None:
        self._jobs = jobs
        self._namespace = namespace

    @override
    def __getitem__(self, artifact: str) -> Elsewhere:
        if found := self._jobs.find(self._namespace, artifact):
            return found
        raise KeyError(artifact)

    @override
    def __iter__(self) -> Iterator[str]:
        return (
            each
            for each in self._jobs.made(self._namespace)
            if self._jobs.find(self._namespace, each)
        )

    @override
    def __len__(self) -> int:
        return sum(1 for _ in self)


def _owner(key: _Key) -> _Owner:
    kind = InferenceModel.kind if isinstance(key, ModelKey) else InferenceEngine.kind
    return (kind, *key)


def _named_owner(obj: Mapping[str, Any]) -> str:
    references = obj["metadata"].get("ownerReferences") or ()
    named = (f"{each['kind']} {each['name']}" for each in references if each["kind"] in _OWNERS)
    return next(named, f"Job {obj['metadata']['name']}")
