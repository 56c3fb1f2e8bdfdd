"""What to compute, how, and its CUDA text. Imports the standard library and jinja2 only."""
