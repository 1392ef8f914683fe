"""How a model is run: one module a backend, each a promise about which provider runs the nodes."""

from enginewright_runtime.backends.loading import LoadedModel, create
from enginewright_runtime.backends.placement import Placement

__all__ = ["LoadedModel", "Placement", "create"]
