"""`enginewright engine inspect`: what an engine is, and whether it will load on a class; none of its code runs."""
