"""Brings a model into the form that a runtime takes, and proves that it still says the same."""

from enginewright_runtime.prepare.convert.planning import Action, ConversionPlan, Step, plan

__all__ = ["Action", "ConversionPlan", "Step", "plan"]
