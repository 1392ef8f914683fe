"""The parts of the demo, one module per story."""
