"""The machine: devices, compiling, running, checking, timing and keeping."""
