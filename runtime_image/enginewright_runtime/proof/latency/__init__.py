"""How long a run of a model takes, how many rows a second it gives, and what memory that needs."""
