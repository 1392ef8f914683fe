"""How a model is run: one module a backend, each a promise about which provider runs the nodes."""
