"""Gives models their turns to move to new runtime images and edited classes, and reports how far all have come.

The state is in the models' statuses. In memory are only a copy, so that a reconcile does not search all
models, and the turns that are not in a status yet.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from typing_extensions import override

from enginewright.api.accelerator_class import AcceleratorClass
from enginewright.api.inference_model_status import MoveState
from enginewright.controller.cache import ObjectCache
from enginewright.controller.parse import parse_objects
from enginewright.controller.routing import ModelKey
from enginewright.kube.resources import ACCELERATOR_CLASSES, INFERENCE_MODELS
from enginewright.observed.moves import MoveView, move_view
from enginewright.plan.fleet.inputs import list_configured
from enginewright.plan.fleet.turns import FleetState, Halt, ModelName, fleet_state, is_settled
from enginewright.plan.types import FleetConfig

STOPPED: Final = (
    "{failures} models do not run right with the new runtime image or an edited AcceleratorClass, so that no further one moves:"
    " `kubectl get im -A -o wide` shows them as Kept, `kubectl describe` why; name another image, correct the"
    " class, or raise fleet.maxFailures in the chart's values"
)

_logger = logging.getLogger(__name__)


class Fleet:
    """The moves of all models in the cache, which must still be empty."""

    def __init__(
        self,
        cache: ObjectCache,
        installed: Mapping[str, str],
        config: FleetConfig,
        *,
        queue: Callable[[ModelKey], None],
        stopped: Callable[[str], None],
    ) -> None:
        """Take what the chart's values have; `stopped` gets the cause when failures stop moves."""
        self._installed = installed
        self._classes: dict[str, AcceleratorClass] = {}
        self._config = config
        self._queue = queue
        self._stopped = stopped
        self._moves: dict[ModelName, MoveView] = {}
        self._unsettled: dict[ModelName, MoveView] = {}  # of these, by what is configured
        self._configured: dict[str, str] | None = None  # until a class changes
        self._granted: set[ModelName] = set()
        self._state: FleetState | None = None  # until a move changes
        self._announced: frozenset[ModelName] = frozenset()
        self._halt: Halt | None = None
        cache.listen(INFERENCE_MODELS, self._on_model)
        cache.listen(ACCELERATOR_CLASSES, self._on_class)

    @property
    def state(self) -> FleetState:
        """Return how far all models have come."""
        if self._state is None:
            configured = self._list_configured()
            self._state = fleet_state(
                self._unsettled.values(),
                configured,
                self._config,
                self._granted,
                settled=len(self._moves) - len(self._unsettled),
            )
        return self._state

    def takes_turn(self, key: ModelKey) -> bool:
        """Return whether a model may move; if so it counts as moving until `planned`."""
        if key not in self.state.permitted:
            return False
        if key not in self._granted:
            self._granted.add(key)
            self._state = None
        return True

    def on_planned(self, key: ModelKey) -> None:
        """Record that a model's status is up to date, and queue models whose turn it is now."""
        if key in self._granted:
            self._granted.discard(key)
            self._state = None
        state = self.state
        for name in sorted(state.permitted - self._announced):
            self._queue(ModelKey(*name))
        self._announced = state.permitted
        if state.halt is Halt.TOO_MANY_FAILURES and self._halt is not state.halt:
            message = STOPPED.format(failures=state.failures)
            _logger.warning("%s", message)
            self._stopped(message)
        self._halt = state.halt

    def _on_model(self, name: ModelName, obj: Mapping[str, Any] | None) -> None:
        move = move_view(obj) if obj is not None else None
        if move == self._moves.get(name):
            return
        self._unsettled.pop(name, None)
        if move is None:
            del self._moves[name]
            self._granted.discard(name)
        else:
            self._moves[name] = move
            if self._configured is None or not is_settled(move, self._configured):
                self._unsettled[name] = move
        self._state = None

    def _on_class(self, name: ModelName, obj: Mapping[str, Any] | None) -> None:
        before = self._classes.pop(name[1], None)
        for device_class in parse_objects(AcceleratorClass, [dict(obj)] if obj else []):
            self._classes[name[1]] = device_class
        now = self._classes.get(name[1])
        if (before and before.spec) != (now and now.spec):  # else it is of its status
            self._state = self._configured = None

    def _list_configured(self) -> dict[str, str]:
        """Return what the installation has, and find who differs from it if that is new."""
        if self._configured is None:
            self._configured = list_configured(self._installed, self._classes.values())
            self._unsettled = {
                name: move
                for name, move in self._moves.items()
                if not is_settled(move, self._configured)
            }
        return self._configured


class FleetCollector(Collector):
    """How far all models have come, as metrics of the replica that leads."""

    def __init__(
        self, fleet: Fleet, registry: CollectorRegistry, *, leads: Callable[[], bool]
    ) -> None:
        self._fleet = fleet
        self._leads = leads
        registry.register(self)

    @override
    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the models by state, and why no further one begins."""
        if not self._leads():
            return
        state = self._fleet.state
        models = GaugeMetricFamily(
            "enginewright_fleet_models",
            "InferenceModels that serve, by state of their move to the runtime images and classes of the"
            " installation: Moved, Moving, Waiting or Kept; exposed by the leader alone.",
            labels=("state",),
        )
        for move_state in MoveState:
            models.add_metric((move_state,), state.models.get(move_state, 0))
        yield models
        halted = GaugeMetricFamily(
            "enginewright_fleet_halted",
            "1 if no further InferenceModel moves for this reason: Paused, or TooManyFailures.",
            labels=("reason",),
        )
        for reason in Halt:
            halted.add_metric((reason,), state.halt is reason)
        yield halted
