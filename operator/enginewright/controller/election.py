"""Leader election and claim with Leases; leader.py makes the decisions.

A user with the role `edit` may write Leases in its namespace. So a Lease claims something only in the namespace of a
release: of an account that a ClusterRoleBinding of the chart names, which only administrators write.

Runs as long as the process. A process that has lost leadership must exit: `lost` is called, and
`may_act` already prevents every request.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Protocol

from enginewright.controller.leader import (
    DEADLINE,
    EVERYTHING,
    LEASE,
    WITHDRAWN,
    ClaimRefused,
    Elector,
    Lead,
    LeaseKey,
    Record,
    StandBy,
    Take,
    Withdraw,
)
from enginewright.kube.api import Creates, JsonObject, Lists
from enginewright.kube.errors import Conflict, Forbidden, KubeError, NotFound
from enginewright.kube.resources import CLUSTER_ROLE_BINDINGS, LEASES
from enginewright.manifests.labels import COMPONENT, MANAGED_BY, OPERATOR

SCOPE_ANNOTATION: Final = "enginewright.dev/claims"
CLAIM: Final = "claim"  # component of the Leases
SELECTOR: Final = f"{MANAGED_BY}={OPERATOR},{COMPONENT}={CLAIM}"
RELEASES: Final = f"app.kubernetes.io/name={OPERATOR}"  # what the chart creates
_RENEW: Final = 2.0  # seconds between renewals
_RETRY: Final = 0.5  # seconds between attempts of those who wait, and after an error
_CALL: Final = 3.0  # seconds for a request, so that the deadline leaves time for a second one

_logger = logging.getLogger(__name__)


class LeaseApi(Lists, Creates, Protocol):
    """What an election needs from the API server. All of them raise `KubeError`."""

    async def replace(self, obj: Mapping[str, Any]) -> JsonObject:
        """Replace an object; Conflict if its resource version is no longer the current one."""


def steady_clock() -> float:
    """Return monotonic seconds that include the time while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True)
class LeaseClaim:
    """What is claimed, and by which process."""

    key: LeaseKey
    identity: str
    scope: frozenset[str]
    owned: Callable[[JsonObject], JsonObject] = lambda obj: obj  # ties the Lease to the release


class Election:
    """One Lease: waits for it, holds it, releases it.

    `refused` is called with the reason when another release prevents this one from acting, and with
    None once no other release does.
    """

    def __init__(
        self,
        api: LeaseApi,
        claim: LeaseClaim,
        *,
        lost: Callable[[str], None],
        refused: Callable[[str | None], None],
        clock: Callable[[], float],
    ) -> None:
        self._api = api
        self._claim = claim
        self._lost = lost
        self._refused = refused
        self._elector = Elector(claim.key, claim.identity, claim.scope)
        self._clock = clock
        self._lease: JsonObject | None = None  # as last read or written
        self._last_logged = ""
        self.leading = asyncio.Event()

    def may_act(self) -> bool:
        """Return whether this process leads at this moment."""
        return self._elector.may_act(self._clock())

    async def run(self) -> None:
        """Wait for leadership and keep it; returns after it was lost and `lost` was called."""
        while True:
            if await self._campaign():
                break
            apart = random.uniform(0.75, 1.25)  # noqa: S311 - replicas do not ask together
            await asyncio.sleep(_RETRY * apart)
        _logger.info("leading: acquired Lease %s/%s", *self._claim.key)
        self.leading.set()
        why = await self._renew_until_lost()
        self._elector.step_down()
        self._lost(why)

    async def release(self) -> None:
        """Release the Lease, so that another replica can lead before it expires, after `run`."""
        self._elector.step_down()
        if not self._elector.has_written:
            return
        try:
            async with asyncio.timeout(1):
                own = (await self._list()).get(self._claim.key)
                if own is not None and own.holder == self._claim.identity:
                    await self._write("", LEASE)
        except (KubeError, TimeoutError) as error:
            _logger.warning("cannot release the Lease, so it will expire: %s", _text(error))

    async def _campaign(self) -> bool:
        try:
            async with asyncio.timeout(DEADLINE):
                return await self._try()
        except Conflict:
            return False  # another replica was faster
        except (KubeError, TimeoutError) as error:
            self._log_once(logging.WARNING, f"cannot acquire the Lease: {_text(error)}")
            return False

    async def _try(self) -> bool:
        sent = self._clock()
        claims = await self._list_claims()
        step = self._elector.decide(claims, sent=sent, received=self._clock())
        if isinstance(step, Take):
            await self._take()
            sent = self._clock()
            claims = await self._list_claims()
            confirmed = self._elector.confirm(claims, sent=sent, received=self._clock())
            if isinstance(confirmed, Lead):
                self._refused(None)
                return True
            if confirmed is None:
                return False
            step = confirmed
        await self._wait(step)
        return False

    async def _take(self) -> None:
        sent = self._clock()
        await self._write(self._claim.identity, LEASE)
        self._elector.on_written(sent=sent)

    async def _wait(self, step: Withdraw | StandBy | ClaimRefused) -> None:
        if isinstance(step, StandBy):
            self._refused(None)
            self._log_once(logging.INFO, f"standing by: {step.holder} leads")
            return
        self._refused(_why(step.rival))
        if isinstance(step, Withdraw):
            await self._write("", WITHDRAWN)
            apart = random.uniform(0, 3)  # noqa: S311 - two that withdrew must not meet again
            await asyncio.sleep(_RETRY * apart)

    async def _renew_until_lost(self) -> str:
        pause, problem = _RENEW, "the process did not run"
        while True:
            left = self._elector.acts_until - self._clock()
            if left <= 0:
                return f"the Lease was not renewed for {DEADLINE:g} s: {problem}"
            await asyncio.sleep(min(pause, left))
            pause = _RETRY
            if (left := self._elector.acts_until - self._clock()) <= 0:
                continue
            try:
                async with asyncio.timeout(min(_CALL, left)):
                    if taken := await self._renew():
                        return taken
                pause, problem = _RENEW, "the process did not run"
            except (KubeError, TimeoutError) as error:
                problem = _text(error)
                _logger.warning("cannot renew the Lease: %s", problem)

    async def _renew(self) -> str | None:
        """Renew once; returns why leadership is lost, or None. Raises KubeError."""
        try:
            await self._take()
        except NotFound:
            return "the Lease was deleted"
        except Conflict:  # another client has annotated it, or a response to our write was lost
            own = (await self._list()).get(self._claim.key)
            if own is None:
                return "the Lease was deleted"
            if own.holder != self._claim.identity:
                return f"the Lease was acquired by {own.holder or 'no process'}"
            raise
        return None

    async def _list_claims(self) -> list[Record]:
        """Return the Leases of releases, of which our own namespace has one. Raises KubeError."""
        records = await self._list()
        homes = {self._claim.key[0]}
        if all(namespace in homes for namespace, _ in records):
            return list(records.values())
        try:
            bindings = await self._api.list(CLUSTER_ROLE_BINDINGS, labels=RELEASES)
        except Forbidden:  # our role is of an earlier version: any may be a release's
            return list(records.values())
        homes |= {
            str(subject.get("namespace"))
            for binding in bindings.items
            for subject in binding.get("subjects") or ()
        }
        return [record for (namespace, _), record in records.items() if namespace in homes]

    async def _list(self) -> dict[LeaseKey, Record]:
        listing = await self._api.list(LEASES, labels=SELECTOR)
        leases = {_key(lease): lease for lease in listing.items}
        self._lease = leases.get(self._claim.key)
        return {key: _record(lease) for key, lease in leases.items()}

    async def _write(self, holder: str, duration: float) -> None:
        """Write our own Lease unless it has changed since it was read. Raises KubeError."""
        body = self._body(holder, duration)
        write = self._api.create if self._lease is None else self._api.replace
        self._lease = await write(body)

    def _body(self, holder: str, duration: float) -> JsonObject:
        """Return the Lease; its times are informational and not used for decisions."""
        before = (self._lease or {}).get("spec") or {}
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        same = before.get("holderIdentity") == holder
        namespace, name = self._claim.key
        metadata: JsonObject = {
            "name": name,
            "namespace": namespace,
            "labels": {MANAGED_BY: OPERATOR, COMPONENT: CLAIM},
            "annotations": {SCOPE_ANNOTATION: ",".join(sorted(self._claim.scope))},
        }
        if self._lease is not None:
            for field in ("uid", "resourceVersion"):
                metadata[field] = self._lease["metadata"][field]
        spec = {
            "holderIdentity": holder,
            "leaseDurationSeconds": int(duration),
            "acquireTime": before.get("acquireTime") if same else now,
            "renewTime": now,
            "leaseTransitions": (before.get("leaseTransitions") or 0) + (not same and bool(holder)),
        }
        return self._claim.owned(
            {
                "apiVersion": LEASES.api_version,
                "kind": LEASES.kind,
                "metadata": metadata,
                "spec": spec,
            }
        )

    def _log_once(self, level: int, text: str) -> None:
        if text != self._last_logged:
            self._last_logged = text
            _logger.log(level, "%s", text)


def _key(lease: Mapping[str, Any]) -> LeaseKey:
    return lease["metadata"]["namespace"], lease["metadata"]["name"]


def _record(lease: Mapping[str, Any]) -> Record:
    spec = lease.get("spec") or {}
    annotations = lease["metadata"].get("annotations") or {}
    return Record(
        key=_key(lease),
        version=lease["metadata"]["resourceVersion"],
        holder=spec.get("holderIdentity") or "",
        duration=float(spec.get("leaseDurationSeconds") or 0),
        scope=frozenset((annotations.get(SCOPE_ANNOTATION) or EVERYTHING).split(",")),
    )


def _why(rival: Record) -> str:
    namespace, name = rival.key
    scope = "all namespaces" if EVERYTHING in rival.scope else ", ".join(sorted(rival.scope))
    return (
        f"another release watches {scope}: Lease {namespace}/{name}, held by"
        f" {rival.holder or 'a replica that has just ended'}; uninstall one of them, or give each release"
        " its own namespaces with the chart value watchNamespaces"
    )


def _text(error: KubeError | TimeoutError) -> str:
    return error.message if isinstance(error, KubeError) else "the request timed out"
