"""What families of tiles have in common: groups of parameters, with their legality and resources."""
