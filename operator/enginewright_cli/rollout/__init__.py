"""Rollouts for people: what a rollout has come to, and the decisions that only people take."""
