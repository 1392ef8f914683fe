"""What the server tells of itself, against the task and the manifest. Pure."""

from collections.abc import Iterable, Iterator

from enginewright.contract import causes
from enginewright.contract.causes import Cause
from enginewright.contract.execution import Execution, PlacementFacts
from enginewright.contract.images import PROVIDERS
from enginewright.contract.manifest import Manifest
from enginewright.contract.processors import mismatch
from enginewright.contract.reasons import Reason
from enginewright.contract.task import ServeTask
from enginewright.contract.verdict import FallbackVerdict

from enginewright_runtime.proof import promise
from enginewright_runtime.serve.sidecar.board import Outcome


def cause(told: Execution, backend: str, admitted: PlacementFacts | None) -> Cause | None:
    """Return why the provider of `backend` does not run the model; None where it does.

    The checks of provider and placement, the verdict on fallback and what hangs on them (metrics,
    alerts, conditions, Events) all name this one.

    Args:
        told: what the server says.
        backend: that was promised.
        admitted: placement when the pod was admitted; None: it was not yet.
    """
    if told.session > 1 and admitted is not None and _moved(told.placement, admitted):
        message = "ONNX Runtime has replaced the session that was admitted"
        return Cause(reason=Reason.SESSION_REPLACED, message=message)
    wrong = list(_wrong(told, backend))
    packages = distribution(told)
    if wrong and packages.reason is not None:  # which providers exist is chance
        wrong.append(Cause(reason=packages.reason, message=packages.message))
    return causes.first(wrong)


def _wrong(told: Execution, backend: str) -> Iterator[Cause]:
    """Yield all that is wrong with the provider; what only follows from a cause comes without one."""
    if told.provider != PROVIDERS[backend]:
        message = (
            f"the server reports {told.provider} as the provider of backend {backend},"
            f" which is {PROVIDERS[backend]}"
        )
        yield Cause(reason=Reason.PROVIDER_MISSING, message=message)
        return
    driver = told.driver
    lacking = driver.needed and not driver.present
    if lacking:
        message = driver.message or f"{told.provider} has no driver"
        yield Cause(reason=driver.reason or Reason.DRIVER_MISSING, message=message)
    if told.provider_reason is not None:
        message = told.provider_message or f"ONNX Runtime could not make {told.provider}"
        yield Cause(reason=told.provider_reason, message=message)
    if lacking or told.provider_reason is not None:
        return
    total = sum(told.placement.nodes.values())
    if told.provider not in told.providers:
        others = ", ".join(told.providers) or "none"
        message = f"the session has {others} instead of {told.provider}"
        yield Cause(reason=Reason.PROVIDER_MISSING, message=message)
    elif total and not told.placement.nodes.get(told.provider):
        message = f"{told.provider} is there and took none of the {total} nodes"
        yield Cause(reason=Reason.UNSUPPORTED_OPERATOR, message=message)


def provider(told: Execution, found: Cause | None) -> Outcome:
    """Turn what `cause` found into the check's outcome: was the provider made, is its driver there?"""
    if found is None:
        return Outcome.ok(f"the session has {told.provider}")
    return Outcome.failed(found.reason, found.message)


def fallback(
    told: Execution, manifest: Manifest, task: ServeTask, found: Cause | None
) -> FallbackVerdict:
    """Judge where the nodes run: `promise.judge`'s verdict, for the reason that `cause` found.

    Args:
        told: what the server says.
        manifest: of what is served.
        task: with the promise.
        found: by `cause`.
    """
    verdict = promise.judge(
        told.placement,
        told.provider,
        manifest,
        task.promise,
        cause=found.reason if found else None,
    )
    if found is None or not verdict.active or verdict.reason is not found.reason:
        return verdict
    return verdict.model_copy(update={"message": f"{found.message}: {verdict.message}"})


def placement(found: FallbackVerdict) -> Outcome:
    """Turn the verdict on fallback into the check's outcome."""
    if found.broken:
        return Outcome.failed(found.reason or Reason.NODE_FALLBACK, found.message)
    return Outcome.ok(found.message)


def original_nodes(
    facts: PlacementFacts, provider_name: str, found: FallbackVerdict
) -> dict[str, int]:
    """Return compute nodes by provider, engines opened, as the verdict on fallback counted them.

    Nodes elsewhere are told by provider only together with shape arithmetic; where several
    providers share them, the one with most nodes takes what the others' counts leave over.
    """
    nodes = {provider_name: found.nodes_total - found.nodes_elsewhere}
    left = found.nodes_elsewhere
    others = sorted(((count, name) for name, count in facts.nodes.items() if name != provider_name))
    for index, (count, name) in enumerate(others):
        nodes[name] = left if index == len(others) - 1 else min(left, count)
        left -= nodes[name]
    return nodes


def distribution(told: Execution) -> Outcome:
    """Judge that one distribution owns the folder `onnxruntime`: of two, the last wins silently."""
    owners = told.ort_distributions
    if len(owners) == 1:
        return Outcome.ok(f"ONNX Runtime is that of {owners[0]}")
    if not owners:
        return Outcome.unknown("the server does not report its ONNX Runtime distribution")
    return Outcome.failed(
        Reason.VERSION_MISMATCH,
        f"{len(owners)} distributions own the folder onnxruntime ({', '.join(sorted(owners))}),"
        " so which providers exist is chance",
    )


def versions(told: Execution, manifest: Manifest, task: ServeTask) -> Outcome:
    """Judge that what runs is what was proven: keys, digests, versions, and the processor where it matters."""
    engine = manifest.engine
    recipe = manifest.recipe if engine is None else engine.recipe
    wrong = _difference(
        [
            ("model", told.model, task.model),
            ("revision", told.revision, task.revision),
            ("backend", told.backend, task.backend),
            ("prepared model", told.prepared_key, task.prepared_key),
            ("engine", told.engine_key, task.engine_key),
            ("model digest", told.model_digest, manifest.model_digest),
            ("opset", told.opset, manifest.opset),
            ("ONNX Runtime", told.ort_version, recipe.ort_version),
        ]
    )
    if wrong:
        return Outcome.failed(Reason.VERSION_MISMATCH, wrong)
    different = mismatch(
        saturable=manifest.saturable, proved_on=manifest.processor, serving=told.processor
    )
    if different and manifest.recipe.int8_products == "exact":  # else golden samples decide
        return Outcome.failed(Reason.PROCESSOR_MISMATCH, different)
    if engine is not None:
        if told.engine_sha256 is None:
            return Outcome.unknown("the server does not report the digest of its engine")
        wrong = _difference([("engine file", told.engine_sha256, engine.sha256)])
        if wrong:
            return Outcome.failed(Reason.ENGINE_CORRUPT, wrong)
        wrong = _difference([(task.backend, told.backend_version, engine.recipe.backend_version)])
        if wrong:
            return Outcome.failed(Reason.ENGINE_VERSION_MISMATCH, wrong)
    return Outcome.ok(f"ONNX Runtime {told.ort_version}, opset {told.opset}, as proven")


def opset_supported(told: Execution, manifest: Manifest) -> bool:
    """Tell whether the ONNX Runtime that serves is known to know the model's opset."""
    recipe = manifest.recipe
    return told.ort_version == recipe.ort_version and told.opset <= recipe.max_opset


def _difference(rows: Iterable[tuple[str, object, object]]) -> str:
    return "; ".join(
        f"{what} is {_short(have)}, proven was {_short(want)}"
        for what, have, want in rows
        if have != want
    )


def _short(value: object) -> str:
    text = "none" if value is None else str(value)
    return text[:12] if len(text) == 64 else text


def _moved(now: PlacementFacts, then: PlacementFacts) -> bool:
    return (now.nodes, sorted(now.elsewhere), now.context_nodes) != (
        then.nodes,
        sorted(then.elsewhere),
        then.context_nodes,
    )
