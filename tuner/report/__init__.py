"""A page of a tuning or a bench: the results, and the reasons for them."""
