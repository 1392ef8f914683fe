"""What is true of a model that runs: agreement of its outputs, placement of its nodes, latency."""
