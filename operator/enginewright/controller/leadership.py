"""What this process may do now: the leader elections of a release.

One Lease for the release; if it does not watch all namespaces, a second one for cluster-scoped
objects, which only one release manages. They have a separate client, so that renewals do not
wait for other requests and a candidate may write its Lease before it leads.
"""

import logging
import socket
import time
import uuid
from collections.abc import Callable
from typing import Final

from prometheus_client import CollectorRegistry

from enginewright.controller.election import Election, LeaseClaim, steady_clock
from enginewright.controller.events import EventRecorder
from enginewright.controller.leader import EVERYTHING
from enginewright.controller.operator_namespace import OperatorNamespace
from enginewright.controller.settings import OperatorSettings
from enginewright.controller.shared import utc_now
from enginewright.kube.client import KubeClient
from enginewright.kube.connection import load_connection
from enginewright.kube.metrics import RestMetrics
from enginewright.kube.resources import ACCELERATOR_CLASSES
from enginewright.manifests.labels import OPERATOR
from enginewright.plan.types import EventIntent

# no namespace has a dot
_CLASSES: Final = f"{ACCELERATOR_CLASSES.plural}.{ACCELERATOR_CLASSES.group}"

_logger = logging.getLogger(__name__)


class Leadership:
    """Elections; `lost` is called when this process has lost leadership and must end the process."""

    def __init__(
        self, settings: OperatorSettings, registry: CollectorRegistry, lost: Callable[[str], None]
    ) -> None:
        self._client = KubeClient(load_connection, RestMetrics(registry, "enginewright_lease"))
        self._lost = lost
        self._namespace = settings.config.namespace
        self.notices = EventRecorder(self._client, clock=time.monotonic, now=utc_now)
        self.own_namespace = OperatorNamespace(self._client, self._namespace, settings.deployment)
        self.refusal: str | None = None  # how another release prevents this one from acting
        name = settings.deployment or OPERATOR
        scope = settings.namespaces or frozenset({EVERYTHING})
        self.release = self._elect(name, scope, self._on_refused)
        self.classes = (
            self._elect(f"{name}-classes", frozenset({_CLASSES}), _others_classes)
            if settings.namespaces
            else None
        )

    def may_write(self) -> bool:
        """Return whether a request that changes something may be sent now."""
        classes = self.classes
        return self.release.may_act() and (
            classes is None or not classes.leading.is_set() or classes.may_act()
        )

    async def hand_over(self) -> None:
        """Release the Leases, so that another replica can lead at once."""
        for election in filter(None, (self.classes, self.release)):
            await election.release()

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    def _elect(
        self, name: str, scope: frozenset[str], refused: Callable[[str | None], None]
    ) -> Election:
        identity = f"{socket.gethostname()}_{uuid.uuid4().hex[:8]}"
        claim = LeaseClaim((self._namespace, name), identity, scope, self.own_namespace.set_owner)
        return Election(self._client, claim, lost=self._lost, refused=refused, clock=steady_clock)

    def _on_refused(self, why: str | None) -> None:
        """Report why another release prevents this one from acting, or None if none does."""
        if why is not None and why != self.refusal:
            _logger.warning("not reconciling: %s", why)
            if self.own_namespace.deployment is not None:
                intent = EventIntent("Warning", "ClaimedByAnotherRelease", why)
                self.notices.record(self.own_namespace.deployment, intent)
        self.refusal = why


def _others_classes(why: str | None) -> None:
    if why is not None:
        _logger.debug("another release manages AcceleratorClasses: %s", why)
