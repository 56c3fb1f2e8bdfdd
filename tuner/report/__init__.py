"""A page of a tuning or a bench: what was found, and why."""
