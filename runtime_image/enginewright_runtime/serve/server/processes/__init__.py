"""Several server processes in one pod: the first one starts the others and answers for all."""
