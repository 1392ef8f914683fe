"""What a model's status says: conditions, and what is recorded of failed backends."""
