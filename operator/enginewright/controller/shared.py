"""What the reconcilers share: how they see the cluster, and how they change it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from enginewright.controller.bucket_user import BucketUser
from enginewright.controller.cache import ObjectCache
from enginewright.controller.catch_up import PodCatchUp
from enginewright.controller.events import EventRecorder
from enginewright.controller.execute import Executor
from enginewright.controller.operator_namespace import OperatorNamespace
from enginewright.controller.refused_writes import RefusedWrites
from enginewright.kube.api import KubeApi
from enginewright.plan.types import Config


def utc_now() -> datetime:
    """Return the current time, timezone-aware."""
    return datetime.now(UTC)


@dataclass(frozen=True)
class Shared:
    """One of each, for all reconcilers of a process."""

    config: Config
    api: KubeApi
    cache: ObjectCache
    pods: PodCatchUp
    executor: Executor
    recorder: EventRecorder
    own_namespace: OperatorNamespace
    bucket_user: BucketUser
    now: Callable[[], datetime]
    refused: RefusedWrites = field(default_factory=RefusedWrites)
