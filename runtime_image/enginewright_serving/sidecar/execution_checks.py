"""Checks of the server's execution report against the task and the manifest. Pure."""

from collections.abc import Iterable, Iterator

from enginewright_contract import causes
from enginewright_contract.execution import Execution, PlacementFacts
from enginewright_contract.images import PROVIDERS
from enginewright_contract.manifest import Manifest
from enginewright_contract.processors import mismatch
from enginewright_contract.reasons import Reason
from enginewright_contract.report import Finding
from enginewright_contract.task import ServeTask
from enginewright_contract.verdict import FallbackVerdict
from enginewright_runtime.proof import promise

from enginewright_serving.sidecar.checks import CheckResult


def cause(reported: Execution, backend: str, admitted: PlacementFacts | None) -> Finding | None:
    """Return why the provider of the promised `backend` does not run the model, or None if it does.

    The checks of provider and placement, the fallback verdict and everything derived from them
    (metrics, alerts, conditions, Events) report this one cause. `admitted` is the placement when the pod was
    admitted.
    """
    if reported.session > 1 and admitted is not None and _has_moved(reported.placement, admitted):
        message = "ONNX Runtime replaced the session after the pod was admitted"
        return Finding(reason=Reason.SESSION_REPLACED, cause=message)
    wrong = list(_wrong(reported, backend))
    packages = distribution(reported)
    if wrong and packages.reason is not None:  # then the available providers are undefined
        wrong.append(Finding(reason=packages.reason, cause=packages.message))
    return causes.first(wrong)


def _wrong(reported: Execution, backend: str) -> Iterator[Finding]:
    if reported.provider != PROVIDERS[backend]:
        message = (
            f"the server reports {reported.provider} as the provider of backend {backend},"
            f" which is {PROVIDERS[backend]}"
        )
        yield Finding(reason=Reason.PROVIDER_MISSING, cause=message)
        return
    driver = reported.driver
    lacking = driver.needed and not driver.present
    if lacking:
        message = driver.message or f"{reported.provider} has no driver"
        yield Finding(reason=driver.reason or Reason.DRIVER_MISSING, cause=message)
    if reported.provider_reason is not None:
        message = reported.provider_message or f"ONNX Runtime could not create {reported.provider}"
        yield Finding(reason=reported.provider_reason, cause=message)
    if lacking or reported.provider_reason is not None:
        return
    total = sum(reported.placement.nodes.values())
    if reported.provider not in reported.providers:
        others = ", ".join(reported.providers) or "none"
        message = f"the session has {others} instead of {reported.provider}"
        yield Finding(reason=Reason.PROVIDER_MISSING, cause=message)
    elif total and not reported.placement.nodes.get(reported.provider):
        message = f"{reported.provider} is available but was assigned none of the {total} nodes"
        yield Finding(reason=Reason.UNSUPPORTED_OPERATOR, cause=message)


def provider(reported: Execution, fault: Finding | None) -> CheckResult:
    """Return the result of check provider: the provider was created and its driver is present."""
    if fault is None:
        return CheckResult.as_ok(f"the session has {reported.provider}")
    return CheckResult.as_failed(fault.reason, fault.cause)


def fallback(
    reported: Execution,
    manifest: Manifest,
    task: ServeTask,
    fault: Finding | None,
) -> FallbackVerdict:
    """Return `promise.judge`'s verdict on the placement, with the `fault` that `cause` returns."""
    verdict = promise.judge(
        reported.placement,
        reported.provider,
        manifest,
        task.promise,
        cause=fault.reason if fault else None,
    )
    if fault is not None and verdict.active and verdict.reason is fault.reason:
        verdict = verdict.model_copy(update={"message": f"{fault.cause}: {verdict.message}"})
    return verdict


def placement(verdict: FallbackVerdict) -> CheckResult:
    """Return the result of check placement for the fallback verdict."""
    if verdict.broken:
        return CheckResult.as_failed(verdict.reason or Reason.NODE_FALLBACK, verdict.message)
    return CheckResult.as_ok(verdict.message)


def original_nodes(
    facts: PlacementFacts, provider_name: str, verdict: FallbackVerdict
) -> dict[str, int]:
    """Return compute nodes by provider as the fallback verdict counts them, with those in engines.

    The server's counts by provider include shape arithmetic, so with several other providers the split
    of their compute nodes is approximate: the provider with most nodes gets the remainder.
    """
    nodes = {provider_name: verdict.nodes_total - verdict.nodes_elsewhere}
    left = verdict.nodes_elsewhere
    others = sorted(((count, name) for name, count in facts.nodes.items() if name != provider_name))
    for index, (count, name) in enumerate(others):
        nodes[name] = left if index == len(others) - 1 else min(left, count)
        left -= nodes[name]
    return nodes


def distribution(reported: Execution) -> CheckResult:
    """Check that one distribution owns the folder `onnxruntime`: the last installed overwrites others."""
    owners = reported.ort_distributions
    if len(owners) == 1:
        return CheckResult.as_ok(f"ONNX Runtime is installed by {owners[0]}")
    if not owners:
        return CheckResult.as_unknown("the server does not report its ONNX Runtime distribution")
    return CheckResult.as_failed(
        Reason.VERSION_MISMATCH,
        f"{len(owners)} distributions own the folder onnxruntime ({', '.join(sorted(owners))}),"
        " so the available providers are undefined",
    )


def versions(reported: Execution, manifest: Manifest, task: ServeTask) -> CheckResult:
    """Check that what runs is what was verified: keys, digests, versions, and the processor for INT8."""
    engine = manifest.engine
    recipe = manifest.recipe if engine is None else engine.recipe
    wrong = _difference(
        [
            ("model", reported.model, task.model),
            ("revision", reported.revision, task.revision),
            ("backend", reported.backend, task.backend),
            ("prepared model", reported.prepared_key, task.prepared_key),
            ("engine", reported.engine_key, task.engine_key),
            ("model digest", reported.model_digest, manifest.model_digest),
            ("opset", reported.opset, manifest.opset),
            ("ONNX Runtime", reported.ort_version, recipe.ort_version),
        ]
    )
    if wrong:
        return CheckResult.as_failed(Reason.VERSION_MISMATCH, wrong)
    different = mismatch(
        saturable=manifest.saturable, verified_on=manifest.processor, serving=reported.processor
    )
    if different and manifest.recipe.int8_products == "exact":  # otherwise golden samples decide
        return CheckResult.as_failed(Reason.PROCESSOR_MISMATCH, different)
    if engine is not None:
        if reported.engine_sha256 is None:
            return CheckResult.as_unknown("the server does not report the digest of its engine")
        wrong = _difference([("engine file", reported.engine_sha256, engine.sha256)])
        if wrong:
            return CheckResult.as_failed(Reason.ENGINE_CORRUPT, wrong)
        wrong = _difference(
            [(task.backend, reported.backend_version, engine.recipe.backend_version)]
        )
        if wrong:
            return CheckResult.as_failed(Reason.ENGINE_VERSION_MISMATCH, wrong)
    return CheckResult.as_ok(
        f"ONNX Runtime {reported.ort_version}, opset {reported.opset}, as verified"
    )


def opset_supported(reported: Execution, manifest: Manifest) -> bool:
    """Return whether the ONNX Runtime that serves is known to support the model's opset."""
    recipe = manifest.recipe
    return reported.ort_version == recipe.ort_version and reported.opset <= recipe.max_opset


def _difference(rows: Iterable[tuple[str, object, object]]) -> str:
    return "; ".join(
        f"{what} is {_short(have)}, verified with {_short(want)}"
        for what, have, want in rows
        if have != want
    )


def _short(value: object) -> str:
    text = "none" if value is None else str(value)
    return text[:12] if len(text) == 64 else text


def _has_moved(now: PlacementFacts, then: PlacementFacts) -> bool:
    return (now.nodes, sorted(now.elsewhere), now.context_nodes) != (
        then.nodes,
        sorted(then.elsewhere),
        then.context_nodes,
    )
