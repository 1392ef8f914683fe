"""Brings a model into the form that a runtime takes, and proves that it still says the same."""

from enginewright_runtime.prepare.convert.planning import Action, Plan, Step, plan

__all__ = ["Action", "Plan", "Step", "plan"]
