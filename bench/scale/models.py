"""What is applied: a class of GPUs, and models of it in namespaces of a hundred."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from bench.scale.api import CLASSES, MODELS, NAMESPACES, Api, Json

IN_NAMESPACE: Final = 100  # models
_GROUP: Final = "enginewright.dev/v1alpha1"
_AT_ONCE: Final = 16  # requests of the user who applies them
_SAY_EVERY: Final = 30.0  # seconds


@dataclass(frozen=True)
class Fleet:
    """Models of one kind."""

    has_engines: bool  # of the store, which kwok tells by the namespace
    count: int

    def place(self, number: int) -> tuple[str, str]:
        """Return namespace and name of a model."""
        kind = "known" if self.has_engines else "new"
        return f"{kind}-{number // IN_NAMESPACE}", f"m-{number}"


@dataclass
class Timeline:
    """When models were applied and became Ready, by the monotonic clock."""

    applied: dict[tuple[str, str], float] = field(default_factory=dict)
    ready: dict[tuple[str, str], float] = field(default_factory=dict)
    why: dict[tuple[str, str], str] = field(default_factory=dict)  # of those that are not
    images: dict[tuple[str, str], str] = field(
        default_factory=dict
    )  # state of the move to new images
    changed: float = 0.0  # when one became Ready last

    def seconds(self) -> list[float]:
        """Return the seconds from apply to Ready, in order."""
        return sorted(self.ready[place] - self.applied[place] for place in self.applied)


def accelerator_class() -> Json:
    """Return a class of GPUs, whose engines are built ahead of time."""
    return {
        "apiVersion": _GROUP,
        "kind": "AcceleratorClass",
        "metadata": {"name": "l4"},
        "spec": {
            "nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-L4"},
            "backends": ["tensorrt-rtx"],
            "resourceName": "nvidia.com/gpu",
            "computeCapability": "8.9",
            "aheadOfTime": True,
        },
    }


def _model(namespace: str, name: str) -> Json:
    return {
        "apiVersion": _GROUP,
        "kind": "InferenceModel",
        "metadata": {"namespace": namespace, "name": name},
        "spec": {
            "source": {"uri": f"https://models.example/{namespace}/{name}.onnx"},
            "accelerators": [{"class": "l4"}],
        },
    }


async def prepare(api: Api, fleet: Fleet) -> None:
    """Create the class and the namespaces."""
    await api.apply(CLASSES, accelerator_class())
    for name in {fleet.place(number)[0] for number in range(fleet.count)}:
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        await api.apply(NAMESPACES, namespace)


async def apply_all(api: Api, fleet: Fleet, timeline: Timeline) -> None:
    """Apply all models of a fleet, several at a time, as fast as the API server takes them."""
    numbers = iter(range(fleet.count))

    async def apply_some() -> None:
        for number in numbers:
            place = fleet.place(number)
            timeline.applied[place] = time.monotonic()
            await api.create(MODELS, _model(*place))

    await asyncio.gather(*(apply_some() for _ in range(_AT_ONCE)))


async def follow(api: Api, timeline: Timeline) -> None:
    """Record when models become Ready, without end."""
    async for _, model in api.watch(MODELS):
        metadata, status = model["metadata"], model.get("status", {})
        place = metadata["namespace"], metadata["name"]
        ready: Json = next(
            (item for item in status.get("conditions", ()) if item["type"] == "Ready"), {}
        )
        timeline.images[place] = status.get("images", {}).get("state", "")
        if ready.get("status") == "True":
            if place not in timeline.ready:
                timeline.ready[place] = timeline.changed = time.monotonic()
            timeline.why.pop(place, None)
        else:
            timeline.why[place] = f"{ready.get('reason')}: {ready.get('message')}"


async def wait_all(
    condition: Callable[[], int],
    count: int,
    patience: float,
    why: Callable[[], str],
    say: Callable[[str], None],
) -> None:
    """Wait until `condition` has reached `count`; at most `patience` seconds without progress, and a second for each."""
    best, since = -1, time.monotonic()
    said, end = since, since + patience + count
    while (now := condition()) < count:
        moment = time.monotonic()
        if now > best:
            best, since = now, moment
        if moment - said > _SAY_EVERY:
            said = moment
            say(f"{now} of {count} are ready")
        if moment - since > patience or moment > end:
            raise TimeoutError(
                f"{now} of {count} are ready, none for {moment - since:.0f} s: {why()}"
            )
        await asyncio.sleep(0.2)
