"""Groups of parameters that families of tiles share, with their legality and resources."""
