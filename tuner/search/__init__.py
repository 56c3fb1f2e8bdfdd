"""How to find better than the shortlist: spaces, neighbours, samplers, studies and their journals."""
