"""The Jinja templates: one kernel family a file, all extending `base.cu.jinja`."""
