"""What every process of the runtime needs, and nothing about models: failures, reports, logs, limits, isolation."""
