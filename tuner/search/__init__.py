"""Searches for configs that are faster than the shortlist: spaces, neighbours, samplers and studies."""
