"""Whether a kernel is right, and how long it takes."""
