"""How a model is run: one module a backend, each a promise about which provider runs the nodes."""

from enginewright_runtime.backends.base import LoadedModel, Placement, create

__all__ = ["LoadedModel", "Placement", "create"]
