"""Rollouts for people: what a rollout has come to, and the decisions that only people take.

The commands write annotations and `spec.rollout.paused` of an InferenceModel; the operator acts on them.
"""
