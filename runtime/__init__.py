"""Devices, compilation, launches, verification, timing and the store of records."""
