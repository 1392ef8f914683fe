"""Which sizes a model's open dimensions may have, found by running it."""
