"""Which value a name stands for, and who reads it: what a model is changed and cut by."""
