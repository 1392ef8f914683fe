"""Benchmarks a model: latency, throughput and memory."""
