"""Where a model's nodes run, and what differs between two of its revisions; pure."""

from collections.abc import Iterable, Iterator
from typing import Any, Final

from enginewright.api.inference_engine import InferenceEngine
from enginewright.api.inference_model import InferenceModel
from enginewright.manifests.labels import CLASS, REVISION
from enginewright.manifests.snapshot import ClassSnapshot, Snapshot
from enginewright.observed.pods import PodView
from enginewright.observed.revisions import RevisionView
from enginewright_contract.verdict import Check, Verdict

from enginewright_cli.diagnose.reading import ModelObjects
from enginewright_cli.diagnose.result import (
    EnginePlacement,
    ModelPlacement,
    PodPlacement,
    RevisionDiff,
    RevisionDifference,
)
from enginewright_cli.formatting import duration, share, size
from enginewright_cli.rollout.describe import arms
from enginewright_cli.rollout.result import RolloutAnalysis

_DIGEST: Final = 12  # characters


def place(seen: ModelObjects) -> ModelPlacement:
    """Return where a model's nodes run: on which provider in each pod, and what is outside its engines."""
    model = seen.model
    needed = {reference.name for reference in model.status.engines} if model else set()
    return ModelPlacement(
        namespace=seen.namespace,
        name=seen.name,
        promise=_promise(model) if model else "",
        pods=tuple(_pod(pod, seen.verdicts.get(pod.name)) for pod in seen.serving),
        engines=tuple(
            placed
            for engine in seen.engines
            if engine.metadata.name in needed and (placed := _engine(engine))
        ),
        notes=seen.unread,
    )


def _promise(model: InferenceModel) -> str:
    fallback = model.spec.fallback.manifest()
    policy = fallback.pop("policy", model.spec.fallback.policy)
    more = ", ".join(f"{name} {value}" for name, value in fallback.items())
    return f"{policy} ({more})" if more else str(policy)


def _pod(pod: PodView, verdict: Verdict | str | None) -> PodPlacement:
    placed: dict[str, Any] = {"message": verdict if isinstance(verdict, str) else ""}
    if isinstance(verdict, Verdict):
        check = next((one for one in verdict.checks if one.check is Check.PLACEMENT), None)
        fallback = verdict.fallback
        placed = {
            "backend": verdict.backend,
            "provider": verdict.provider or "",
            "state": check.state if check else "",
            "nodes_total": fallback.nodes_total if fallback else None,
            "nodes_elsewhere": fallback.nodes_elsewhere if fallback else None,
            "compute_share_elsewhere": fallback.compute_share if fallback else None,
            "message": (check.message if check else "") or (fallback.message if fallback else ""),
        }
    return PodPlacement(
        pod=pod.name,
        class_name=pod.label(CLASS),
        revision=pod.label(REVISION),
        node=pod.node,
        ready=pod.ready,
        **placed,
    )


def _engine(engine: InferenceEngine) -> EnginePlacement | None:
    facts = engine.status.engine
    if facts is None:
        return None
    return EnginePlacement(
        engine=engine.metadata.name,
        class_name=engine.spec.class_name,
        nodes_total=facts.nodes_total,
        nodes_accelerated=facts.nodes_accelerated,
        compute_share_elsewhere=_share(facts.billionths_elsewhere),
        elsewhere=facts.elsewhere,
    )


def _share(billionths: int | None) -> float | None:
    return None if billionths is None else billionths / 1e9


def diff(
    seen: ModelObjects, analysis: RolloutAnalysis | None = None, other: str | None = None
) -> RevisionDiff:
    """Return what differs between the active revision and the one that is brought up, was rejected last, or `other`.

    `analysis` is the live comparison of both, while there is a canary.
    """
    model = seen.model
    active, new = arms(model) if model else ("", "")
    target = other or new or _last_rejected(seen.revisions, active)
    notes = list(seen.unread)
    by_name = {view.revision: view for view in seen.revisions}
    sides = []
    for name in (active, target):
        view = by_name.get(name)
        if name and (view is None or view.kept is None):
            notes.append(f"revision {name} is not stored any more, or of another version")
        sides.append(view.kept.snapshot if view and view.kept else None)
    if not active:
        notes.append("no revision has served yet with all its pods")
    elif not target:
        notes.append("no other revision is brought up or was rejected: name one with --revision")
    view = by_name.get(target)
    rows = _rows(seen, (active, sides[0]), (target, sides[1])) if active and target else ()
    return RevisionDiff(
        namespace=seen.namespace,
        name=seen.name,
        active=active,
        target=target,
        outcome=_outcome(model, view, target),
        differences=tuple(rows),
        analysis=analysis,
        notes=tuple(notes),
    )


def _last_rejected(revisions: Iterable[RevisionView], active: str) -> str:
    """Return the newest revision that was rejected, unless the active one is newer."""
    for view in revisions:  # the newest first
        if view.revision == active:
            return ""
        if view.outcome and view.outcome.state == "Rejected":
            return view.revision
    return ""


def _outcome(model: InferenceModel | None, view: RevisionView | None, name: str) -> str:
    target = model.status.target if model else None
    if target and target.revision == name:
        return ": ".join(filter(None, (target.phase, target.message)))
    if view and view.outcome:
        outcome = view.outcome
        return ": ".join(filter(None, (outcome.state, outcome.reason, outcome.message)))
    return ""


_Side = tuple[str, Snapshot | None]


def _rows(seen: ModelObjects, active: _Side, target: _Side) -> Iterator[RevisionDifference]:
    sides = (active, target)
    columns = [dict(_describe(seen, name, snapshot)) for name, snapshot in sides]
    for what in dict.fromkeys((*columns[0], *columns[1])):
        left, right = (column.get(what, "") for column in columns)
        yield RevisionDifference(what=what, active=left, target=right, same=left == right)


def _describe(
    seen: ModelObjects, name: str, snapshot: Snapshot | None
) -> Iterator[tuple[str, str]]:
    """Yield the properties of a revision: what is in its snapshot, its engines, and what its pods have measured."""
    if snapshot is not None:
        yield "model", snapshot.model_digest[:_DIGEST]
        yield "prepared model", snapshot.prepared_key[:_DIGEST]
        for one in snapshot.classes:
            yield f"class {one.name}: backend", one.backend + (" (interim)" if one.interim else "")
            yield f"class {one.name}: image", one.image
            yield from _describe_engine(seen, one)
    verdicts = [
        verdict
        for pod in seen.serving
        if pod.label(REVISION) == name
        and isinstance(verdict := seen.verdicts.get(pod.name), Verdict)
    ]
    errors = [one.parity_max_abs_error for one in verdicts if one.parity_max_abs_error is not None]
    if errors:
        yield "largest error against golden outputs", f"{max(errors):.3g}"
    baselines = [one.baseline for one in verdicts if one.baseline]
    if baselines:
        yield "baseline, median", duration(max(one.p50 for one in baselines))
    tails = [one.p99 for one in baselines if one.p99 is not None]
    if tails:
        yield "baseline, p99", duration(max(tails))


def _describe_engine(seen: ModelObjects, one: ClassSnapshot) -> Iterator[tuple[str, str]]:
    if one.engine_key is None:
        return
    yield f"class {one.name}: engine", one.engine_key[:_DIGEST]
    engine = next((item for item in seen.engines if item.spec.key == one.engine_key), None)
    facts = engine.status.engine if engine else None
    if facts is None:
        return
    yield f"class {one.name}: engine file", f"{facts.sha256[:_DIGEST]}, {size(facts.size_bytes)}"
    if facts.parity:
        yield f"class {one.name}: engine's largest error", facts.parity.max_abs_error
    if facts.p99_microseconds is not None:
        yield f"class {one.name}: engine's p99", duration(facts.p99_microseconds / 1e6)
    outside = _share(facts.billionths_elsewhere)
    if outside is not None:
        yield f"class {one.name}: time outside the engine", share(outside)
