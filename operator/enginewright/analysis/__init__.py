"""Pure comparison of a new revision's measurements with those of the serving one. No IO, no clock."""
