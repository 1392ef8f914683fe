"""Carries out a plan for one object: each write apart, then a status and Events that say what was refused.

The plan decides, `plan/writes.py` orders its writes by purpose, and the executor makes them. Here each is
tried unless it needs another that is not there, or was refused a moment ago. Deletions are always tried. What is
refused returns as when to come back, not as an error of the whole: the loop's own backoff is for passes
that could not be carried out to their end.
"""

import logging
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from functools import partial
from typing import Final

from enginewright_contract.keys import sha256_text

from enginewright.api.conditions import StatusReason
from enginewright.controller.execute import StillTerminating
from enginewright.controller.loop import ReconcileResult
from enginewright.controller.refused_writes import WriteKey
from enginewright.controller.shared import Shared
from enginewright.kube.api import JsonObject
from enginewright.kube.errors import KubeError, Terminating, Transient
from enginewright.kube.resources import DEPLOYMENTS, resource_of
from enginewright.plan.types import EventIntent, ObjectRef, Plan
from enginewright.plan.writes import Purpose, RefusedObject, order_writes, report_refusals

STUCK_AFTER: Final = timedelta(minutes=1)  # a deletion whose name is needed

_logger = logging.getLogger(__name__)


async def apply_plan(plan: Plan, observed: JsonObject, shared: Shared) -> ReconcileResult:
    """Carry out a plan, write the status, record Events. Raises KubeError where no further write would succeed."""
    writes = _Writes(shared, observed)
    try:
        await writes.carry_out(plan)
    except Terminating as error:
        _logger.info("skipped: %s", error.message)  # the object is deleted with its namespace
        return ReconcileResult(requeue_after=plan.requeue_after)
    reported = report_refusals(plan, writes.refusals, observed.get("status") or {}, shared.now())
    writes.changed |= await shared.executor.write_status(observed, reported.status)
    for intent in reported.events:
        shared.recorder.record(observed, intent)
    waits = [plan.requeue_after, *(due.total_seconds() for due in writes.due_in)]
    return ReconcileResult(
        requeue=writes.changed,
        requeue_after=min(filter(None, waits), default=None),
        refused=writes.refused,
        unsure=writes.unsure,
    )


class _Writes:
    """The writes of one pass, and what became of them."""

    def __init__(self, shared: Shared, observed: JsonObject) -> None:
        self._shared = shared
        self._observed = observed
        self._now = shared.now()
        self._absent: set[tuple[str, str]] = set()  # kinds and names that others may need
        self.refusals: list[RefusedObject] = []
        self.due_in: list[timedelta] = []
        self.changed = False
        self.refused = False  # by an attempt of this pass
        self.unsure = False  # whether a failed write was carried out

    async def carry_out(self, plan: Plan) -> None:
        """Try all writes. Raises Terminating, and Transient of the whole API server."""
        executor = self._shared.executor
        for intent in plan.metadata:
            ref = ObjectRef(intent.api_version, intent.kind, intent.namespace, intent.name)
            write = partial(executor.set_metadata, intent)
            # without values, of which some have the time of the pass
            what = (sorted(intent.labels.items()), sorted(intent.annotations))
            await self._try(Purpose.RECORD, "annotate", ref, what, write)
        for planned in order_writes(plan):
            obj, metadata = planned.obj, planned.obj["metadata"]
            ref = ObjectRef(
                obj["apiVersion"], obj["kind"], metadata.get("namespace") or "", metadata["name"]
            )
            if planned.is_due(self._absent):
                write = partial(executor.apply, obj, self._on_revert)
                await self._try(planned.purpose, "apply", ref, obj, write)
            elif self._find(ref) is None:
                self._absent.add((ref.kind, ref.name))
        for handover in plan.hand_over:
            ref = ObjectRef(
                DEPLOYMENTS.api_version, DEPLOYMENTS.kind, handover.namespace, handover.name
            )
            write = partial(executor.hand_over, handover)
            await self._try(Purpose.AUTOSCALING, "share", ref, handover, write)
        for ref in plan.delete:
            await self._try(Purpose.REMOVAL, "delete", ref, ref, partial(executor.delete, ref))

    async def _try(
        self,
        purpose: Purpose,
        verb: str,
        ref: ObjectRef,
        what: object,
        write: Callable[[], Awaitable[bool]],
    ) -> None:
        """Make one write, unless the same one was refused a moment ago."""
        observed = self._find(ref)
        metadata = observed["metadata"] if observed else {}
        key = WriteKey(verb, ref.kind, ref.namespace, ref.name)

        def describe() -> str:
            return sha256_text(repr((what, metadata.get("uid"), metadata.get("generation"))))

        memory = self._shared.refused
        refused = memory.find_waiting(key, describe, self._now)
        if refused is None:
            try:
                self.changed |= await write()
            except StillTerminating as error:
                self._absent.add((ref.kind, ref.name))
                self._wait_for_end(purpose, ref, error)
                return
            except KubeError as error:
                if not error.is_of_one_write:
                    raise
                refused = memory.record(key, describe(), error, self._now)
                self.refused = True
                wait = (refused.due - self._now).total_seconds()
                _logger.error("%s %s: %s; retrying in %.0f s", ref.kind, ref.name, error, wait)  # noqa: TRY400 - the sentence says it
            else:
                memory.forget(key)
                self._absent.discard((ref.kind, ref.name))
                return
        if observed is None:
            self._absent.add((ref.kind, ref.name))
        self.unsure |= isinstance(refused.error, Transient)
        self.due_in.append(refused.due - self._now)
        self._refuse(purpose, ref, refused.error, absent=observed is None)

    def _find(self, ref: ObjectRef) -> JsonObject | None:
        resource = resource_of(ref.api_version, ref.kind)
        return self._shared.cache.get(resource, ref.namespace, ref.name)

    def _wait_for_end(self, purpose: Purpose, ref: ObjectRef, error: StillTerminating) -> None:
        """Wait for the event that an object has gone; name it once that takes long."""
        _logger.info("waiting: %s %s: %s", ref.kind, ref.name, error.message)
        left = STUCK_AFTER
        if error.since:
            left -= self._now - datetime.fromisoformat(error.since)
        if left > timedelta():
            self.due_in.append(left)
        else:
            self._refuse(purpose, ref, error, absent=True)

    def _refuse(self, purpose: Purpose, ref: ObjectRef, error: KubeError, *, absent: bool) -> None:
        message = f"{error.message}: {error.remedy}" if error.remedy else error.message
        self.refusals.append(RefusedObject(purpose, ref.kind, ref.name, message, absent))

    def _on_revert(self, message: str) -> None:
        intent = EventIntent("Warning", StatusReason.EDIT_UNDONE, message)
        self._shared.recorder.record(self._observed, intent)
