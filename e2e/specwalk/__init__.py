"""A walk through the specs that the schema allows: one property a step, to its bounds and beyond, and back."""
