"""Verification of a running model: parity of its outputs, placement of its nodes, latency."""
