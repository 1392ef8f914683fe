"""Runs the stages for every target and collects their results; targets of one backend share a prepared model."""

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

from enginewright.plan.engines.coverage import EngineCoverage, promise_violation
from enginewright_contract import task as contract
from enginewright_contract.budget import billionths
from enginewright_contract.engines import whole_only
from enginewright_contract.facts import ExamineFacts, FetchFacts, ParseFacts, RequestAnswer
from enginewright_contract.images import COMPILED_BACKENDS, ImageFacts
from enginewright_contract.keys import engine_key
from enginewright_contract.manifest import Manifest
from enginewright_contract.processors import timing_mismatch
from enginewright_contract.reasons import Reason, reason_named
from enginewright_contract.report import Finding, PublishedEngine, StageReport, render
from enginewright_contract.task import (
    ENGINE_STAGES,
    EXAMINE_STAGE,
    PARSE_STAGE,
    PREPARE_STAGES,
    EngineRecipe,
    EngineTask,
    PrepareTask,
    Recipe,
    ServeTask,
)

from enginewright_cli.preflight import graph, placement
from enginewright_cli.preflight.artifact import describe_engine, describe_parity
from enginewright_cli.preflight.local_pod import LocalPod
from enginewright_cli.preflight.options import limits
from enginewright_cli.preflight.remedies import advise
from enginewright_cli.preflight.request import PreflightRequest, local_uri
from enginewright_cli.preflight.result import (
    Found,
    Graph,
    ModelFacts,
    Parity,
    Result,
    TargetResult,
    judge_failure,
    make_found,
    merge_findings,
    worst,
)
from enginewright_cli.preflight.stopping import in_parallel
from enginewright_cli.preflight.targets import PARSED, PreflightTarget, group_key, scope
from enginewright_cli.preflight.workspace import PreflightWorkspace

_MAX_NODES_ELSEWHERE: Final = 100
_OF_CLIENT: Final = range(400, 500)  # codes of HTTP
_PARITY: Final[dict[Reason, Literal["fail", "unknown"]]] = {  # of a target that failed
    Reason.PARITY_FAILED: "fail",
    Reason.PARITY_UNKNOWN: "unknown",
}

Progress = Callable[[str, str], None]  # target, stage that starts
_Job = Callable[[], str | None]  # returns why it failed; discards the findings of its earlier run


class _ModelFindings:
    """Facts about the model itself: the same in every pod, so read only once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._graph: Graph | None = None
        self.facts: ModelFacts | None = None

    def describe_graph(self, path: Path) -> None:
        """Describe the source's graph, while the stages continue."""
        with self._lock:
            if self._graph is None:
                self._graph = graph.describe(path)

    def note(self, report: StageReport, pod: LocalPod) -> None:
        """Take the facts of stages `fetch` and `validate`."""
        if not report.ok:
            return
        if report.stage == "fetch":
            self.describe_graph(pod.find_model())
        with self._lock:
            if report.stage == "fetch" and self.facts is None:
                fetched = FetchFacts.model_validate(report.facts)
                self.facts = ModelFacts(
                    digest=fetched.digest, size_bytes=fetched.size_bytes, graph=self._graph
                )
            if report.stage == "validate" and self.facts is not None:
                validated = pod.read_validated()
                self.facts = self.facts.model_copy(
                    update={
                        name: getattr(validated, name)
                        for name in ("opset", "ir_version", "nodes", "inputs", "outputs")
                    }
                )


def check(
    request: PreflightRequest,
    place: PreflightWorkspace,
    held: ImageFacts,
    progress: Progress,
    at_once: int,
) -> Result:
    """Check the model on every target, with up to `at_once` Jobs at once. Raises InstallationError and Stopped."""
    began = time.monotonic()
    uri = _mount(request, place)
    model = _ModelFindings()
    backends = [
        _Backend(request, place, held, progress, tuple(targets), uri, model)
        for _, targets in itertools.groupby(sorted(request.checked, key=group_key), key=group_key)
    ]
    _run([backend.prepare for backend in backends], at_once, place)
    _run([build for backend in backends for build in backend.builds()], at_once, place)
    for backend in backends:
        backend.examine()  # one at a time: runs are timed
    found_on = {name: result for backend in backends for name, result in backend.targets.items()}
    ordered = {
        target.name: found_on[target.name].model_copy(
            update={"scope": scope(target, request.checked, held)}
        )
        if target.name in found_on
        else TargetResult(
            verdict="unknown",
            backend=target.backend,
            reason=Reason.PROVIDER_MISSING.value,
            message=f"not checked: {request.unchecked[target.name]}",
        )
        for target in request.targets
    }
    return Result(
        verdict=worst(tuple(target_result.verdict for target_result in ordered.values())),
        source=request.shown,
        model=model.facts,
        findings=merge_findings([finding for backend in backends for finding in backend.findings]),
        targets=ordered,
        seconds=round(time.monotonic() - began, 3),
    )


def _run(jobs: Sequence[_Job], at_once: int, place: PreflightWorkspace) -> None:
    """Run Jobs at once, then rerun one by one those that lacked shared resources."""
    retries: list[_Job] = []

    def run(job: _Job) -> None:
        if (reason := reason_named(job() or "")) and reason.lacks_resources:
            retries.append(job)

    in_parallel([partial(run, item) for item in jobs], at_once, place.abandon)
    if min(at_once, len(jobs)) > 1:
        for retry in retries:
            retry()


def _mount(request: PreflightRequest, place: PreflightWorkspace) -> str:
    """Mount local files where stage `fetch` reads them; return the model's URI."""
    for path, mount in (
        (request.samples, contract.SAMPLES_PATH),
        (request.calibration, contract.CALIBRATION_PATH),
    ):
        if path is not None:
            place.mount(mount, path.resolve().parent)
    for name, path in request.steps.items():
        place.mount(f"{contract.PROCESSING_PATH}/{name}", path.parent)
    if "://" in request.source:
        return request.source
    path = Path(request.source).resolve()
    place.mount(contract.SOURCE_PATH, path.parent)
    return local_uri(path)


@dataclass(frozen=True)
class _Prepared:
    key: str
    manifest: Manifest
    seconds: float  # time that preparation took


@dataclass
class _Backend:
    """All targets of one backend that share one prepared model."""

    _request: PreflightRequest
    _place: PreflightWorkspace
    _held: ImageFacts
    _progress: Progress
    _targets: tuple[PreflightTarget, ...]
    _uri: str
    _model: _ModelFindings

    def __post_init__(self) -> None:
        self._backend = self._targets[0].backend
        self._prepared: _Prepared | None = None
        names = ("", *(target.name for target in self._targets))
        self._found: dict[str, list[Found]] = {name: [] for name in names}
        self.targets: dict[str, TargetResult] = {}

    @property
    def findings(self) -> list[Found]:
        """Return the findings: first those of all targets, then those of each."""
        return [finding for findings in self._found.values() for finding in findings]

    def prepare(self) -> str | None:
        """Run the prepare Job; return why it failed."""
        targets = self._targets
        self._found[""].clear()
        began = time.monotonic()
        task = PrepareTask(
            job="-".join(filter(None, ("prepare", *group_key(targets[0])))),
            source_uri=self._uri,
            recipe=self._recipe(),
        )
        last = self._stages(PREPARE_STAGES, task, targets)
        seconds = time.monotonic() - began
        if last.published is None:
            failed = TargetResult.model_validate(
                {"backend": self._backend, "seconds": round(seconds, 3), **_describe_failure(last)}
            )
            self.targets |= dict.fromkeys((target.name for target in targets), failed)
            return failed.reason
        key = last.published.key
        self._prepared = _Prepared(key, self._place.manifest("prepared", key), seconds)
        return None

    def builds(self) -> list[_Job]:
        """Return the engine Jobs of the targets; [] for backends without engines."""
        if self._backend not in COMPILED_BACKENDS:
            return []
        return self._make_jobs(self._parse if self._backend == PARSED else self._engine)

    def examine(self) -> None:
        """Run the prepared model as it would be served, for backends without engines."""
        if self._backend in COMPILED_BACKENDS:
            return
        for examine in self._make_jobs(self._examine):
            examine()

    def _make_jobs(
        self, judge: Callable[[PreflightTarget, _Prepared], dict[str, Any]]
    ) -> list[_Job]:
        if self._prepared is None:
            return []
        return [partial(self._judge, target, self._prepared, judge) for target in self._targets]

    def _judge(
        self,
        target: PreflightTarget,
        prepared: _Prepared,
        judge: Callable[[PreflightTarget, _Prepared], dict[str, Any]],
    ) -> str | None:
        began = time.monotonic()
        self._found[target.name].clear()
        manifest = prepared.manifest
        common = {
            "backend": self._backend,
            "precision": manifest.precision,
            "changes": manifest.changes,
            "prepared_key": prepared.key,
            "versions": manifest.versions,
            "parity": describe_parity(manifest),
        }
        judged = judge(target, prepared)
        seconds = round(prepared.seconds + time.monotonic() - began, 3)
        result = TargetResult.model_validate({**common, **judged, "seconds": seconds})
        self.targets[target.name] = result
        return result.reason

    def _recipe(self) -> Recipe:
        recipe, target = self._request.recipe, self._targets[0]
        update: dict[str, object] = {"backend": self._backend}
        if target.runtime_version:
            version, opset, ir_version = limits(target.runtime_version, self._held)
            update |= {"ort_version": version, "max_opset": opset, "max_ir_version": ir_version}
        may_be_int8 = "INT8" in (recipe.precision, *recipe.allowed_precisions)
        update["int8_products"] = target.int8_products if may_be_int8 else None
        return recipe.model_copy(update=update)

    def _stages(
        self,
        stages: tuple[str, ...],
        task: PrepareTask | EngineTask,
        targets: tuple[PreflightTarget, ...],
    ) -> StageReport:
        names = ", ".join(target.name for target in targets)
        with self._place.pod(task.job) as pod:

            def on_stage(stage: str) -> None:
                if stage == "validate":
                    self._model.describe_graph(pod.find_model())
                self._progress(names, stage)

            outcomes = tuple(
                _name_local_files(outcome, self._request)
                for outcome in pod.run(stages, task, on_stage)
            )
            for outcome in outcomes:
                self._note(outcome, targets)
                self._model.note(outcome, pod)
        return outcomes[-1]

    def _note(self, outcome: StageReport, targets: tuple[PreflightTarget, ...]) -> None:
        target_name = targets[0].name if outcome.stage not in PREPARE_STAGES else ""
        findings = outcome.findings
        if outcome.failure and all(finding.severity != "error" for finding in findings):
            findings = (outcome.failure, *findings)  # no error among them explains the failure
        self._found[target_name] += [
            make_found(finding, outcome.stage, (target.name,))
            for target in targets
            for finding in findings
        ]

    def _make_engine_task(self, target: PreflightTarget, prepared: _Prepared) -> EngineTask:
        recipe = EngineRecipe(
            backend=self._backend,
            backend_version=self._held.backends[self._backend],
            ort_version=self._held.ort_version,
            cuda_major=self._held.cuda_major,
            accelerator_class=target.name,
            compute_capability=target.compute_capability,
            ahead_of_time=True,
        )
        return EngineTask(
            job=f"engine-{target.name}",
            engine_key=engine_key(prepared.key, recipe),
            prepared_key=prepared.key,
            recipe=recipe,
        )

    def _engine(self, target: PreflightTarget, prepared: _Prepared) -> dict[str, Any]:
        last = self._stages(ENGINE_STAGES, self._make_engine_task(target, prepared), (target,))
        if last.engine is None or not last.ok:
            return _describe_failure(last)
        return self._check_promise(target, last.engine)

    def _parse(self, target: PreflightTarget, prepared: _Prepared) -> dict[str, Any]:
        """Ask the parser of a library that builds only on a device, which decides the rest."""
        last = self._stages((PARSE_STAGE,), self._make_engine_task(target, prepared), (target,))
        if not last.ok:
            return _describe_failure(last)
        facts = ParseFacts.model_validate(last.facts)
        finding = Finding(
            severity="warning",
            reason=Reason.DRIVER_MISSING,
            cause=f"{facts.library} parses the whole model; it builds engines only on their device, so kernels,"
            " memory, latency and outputs are unknown",
            remedy="the engine's Job builds and verifies on its device",
        )
        self._found[target.name].append(make_found(finding, PARSE_STAGE, (target.name,)))
        outside = EngineCoverage(
            nodes_total=facts.nodes_total,
            nodes_accelerated=facts.nodes_total,
            compute=None,
            elsewhere=(),
        )
        return self._make_verdict(target, outside, None)

    def _check_promise(self, target: PreflightTarget, engine: PublishedEngine) -> dict[str, Any]:
        """Check the engine's coverage against the promise, as the operator does before a pod starts."""
        manifest = self._place.manifest("engines", engine.key)
        info = manifest.engine
        outside = EngineCoverage(
            nodes_total=engine.nodes_total,
            nodes_accelerated=engine.nodes_accelerated,
            compute=_billionths(engine.compute_share_elsewhere),
            elsewhere=engine.elsewhere,
        )
        broken = promise_violation(outside, self._request.promise, target.name)
        if outside.nodes_accelerated < outside.nodes_total:
            self._found[target.name] += _rejecting_backends(self._backend, target, outside)
        return {
            **self._make_verdict(target, outside, broken),
            "engine_key": engine.key,
            "engine_bytes": engine.size_bytes,
            "build_seconds": engine.build_seconds,
            "latency": info.latency if info else None,
            "engine": describe_engine(info) if info else None,
            "placement": placement.of_engine(manifest),
            "versions": manifest.versions,
        }

    def _examine(self, target: PreflightTarget, prepared: _Prepared) -> dict[str, Any]:
        """Load the prepared model as a serving pod would, and record where its nodes run."""
        task = ServeTask(
            model="model",
            revision=f"examine-{target.name}",
            prepared_key=prepared.key,
            backend=self._backend,
            promise=self._request.promise,
        )
        with self._place.pod(task.revision) as pod:
            examined = pod.examine(
                task, self._request.sent, lambda stage: self._progress(target.name, stage)
            )
        outcome = _name_local_files(examined, self._request)
        self._note(outcome, (target,))
        if not outcome.ok:
            return _describe_failure(outcome)
        facts = ExamineFacts.model_validate(outcome.facts)
        seen = facts.placement
        outside = EngineCoverage(
            nodes_total=seen.nodes_total,
            nodes_accelerated=seen.nodes_total - seen.nodes_elsewhere,
            compute=_billionths(seen.compute_share),
            elsewhere=facts.elsewhere[:_MAX_NODES_ELSEWHERE],
        )
        if unknown := target.describe_unknown():
            self._found[target.name].append(make_found(unknown, EXAMINE_STAGE, (target.name,)))
        not_comparable = self._note_timing_mismatch(target)
        broken = (seen.reason, seen.message) if seen.broken and seen.reason else None
        answer = facts.answer
        if answer is not None and answer.message:
            refused = self._note_refusal(target, answer)
            broken = broken or refused
        return {
            **self._make_verdict(target, outside, broken),
            "latency": None if not_comparable else facts.latency,
            "placement": placement.of_session(prepared.manifest, facts.elsewhere),
            "answer": [output.model_dump() for output in answer.outputs] if answer else (),
        }

    def _note_refusal(self, target: PreflightTarget, answer: RequestAnswer) -> tuple[Reason, str]:
        """Add a finding for a request that the server would refuse; return why the target fails."""
        rejected = answer.status in _OF_CLIENT
        finding = Finding(
            reason=Reason.REQUESTS_REJECTED if rejected else Reason.INVALID_MODEL,
            cause=f"the server would answer --request with {answer.status}: {answer.message}",
            remedy="correct the request, or the step or model that refuses it"
            if rejected
            else "correct the step or model that fails",
        )
        self._found[target.name].append(make_found(finding, EXAMINE_STAGE, (target.name,)))
        return finding.reason, finding.cause

    def _note_timing_mismatch(self, target: PreflightTarget) -> bool:
        """Return whether the target's kind of CPU cannot be timed here; if so, add a finding."""
        here = self._held.processor
        if target.processor is None or here is None:
            return False
        why = timing_mismatch(here, target.processor)
        if why is None:
            return False
        finding = Finding(
            severity="warning",
            reason=Reason.PROCESSOR_MISMATCH,
            cause=f"the latency on {target.name} cannot be measured here: {why}",
        )
        self._found[target.name].append(make_found(finding, EXAMINE_STAGE, (target.name,)))
        return True

    def _make_verdict(
        self, target: PreflightTarget, outside: EngineCoverage, broken: tuple[Reason, str] | None
    ) -> dict[str, Any]:
        counted = {
            "nodes_total": outside.nodes_total,
            "nodes_accelerated": outside.nodes_accelerated,
            "compute_share_elsewhere": None if outside.compute is None else outside.compute / 1e9,
            "elsewhere": outside.elsewhere,
        }
        if broken is not None:
            reason, message = broken
            verdict = judge_failure(reason)
            return {"verdict": verdict, "reason": reason.value, "message": message, **counted}
        left = outside.nodes_accelerated < outside.nodes_total
        warned = any(target.name in finding.targets for finding in self.findings)
        return {"verdict": "warn" if left or warned else "pass", **counted}


def _name_local_files(outcome: StageReport, request: PreflightRequest) -> StageReport:
    def rename(finding: Finding) -> Finding:
        cause, remedy = request.name_local_files(finding.cause), finding.remedy
        return finding.model_copy(
            update={"cause": cause, "remedy": remedy and request.name_local_files(remedy)}
        )

    return outcome.model_copy(
        update={
            "failure": outcome.failure and rename(outcome.failure),
            "findings": tuple(map(rename, outcome.findings)),
        }
    )


def _rejecting_backends(
    backend: str, target: PreflightTarget, outside: EngineCoverage
) -> list[Found]:
    """Return findings for backends that reject a model with nodes outside the engine."""
    return [
        Found(
            severity="warning",
            reason=Reason.UNSUPPORTED_OPERATOR.value,
            message=f"backend {other} would reject this model: {limit}",
            remedy=f"deploy it with backend {backend}, if nodes may stay outside the engine",
            nodes=outside.elsewhere,
            node_count=outside.nodes_total - outside.nodes_accelerated,
            stage="build",
            targets=(target.name,),
        )
        for other in sorted(COMPILED_BACKENDS - {backend})
        if (limit := whole_only(other))
    ]


def _billionths(share: float | None) -> int | None:
    return None if share is None else billionths(share)


def _describe_failure(outcome: StageReport) -> dict[str, Any]:
    failure = outcome.failure
    failed: dict[str, Any] = {"verdict": judge_failure(failure.reason if failure else None)}
    if failure:
        message = render(failure.cause, advise(failure))
        failed |= {"reason": failure.reason.value, "message": message}
        if verdict := _PARITY.get(failure.reason):
            failed["parity"] = Parity(verdict=verdict)
    return failed
