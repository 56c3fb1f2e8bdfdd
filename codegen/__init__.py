"""Problems, configs and their CUDA text. Imports the standard library and jinja2 only."""
