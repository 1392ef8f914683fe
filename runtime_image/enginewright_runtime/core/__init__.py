"""Shared by all processes of the runtime, independent of models: failures, reports, logs, isolation."""
