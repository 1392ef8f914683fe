"""PodDisruptionBudgets: only their identity."""

from dataclasses import dataclass

from enginewright.observed.base import Json, ObservedObject, identity


@dataclass(frozen=True, kw_only=True)
class BudgetView(ObservedObject):
    """The PodDisruptionBudget of a model's pods on one accelerator class."""


def budget_view(obj: Json) -> BudgetView:
    """Return the view of a PodDisruptionBudget (policy/v1)."""
    return BudgetView(**identity(obj))
