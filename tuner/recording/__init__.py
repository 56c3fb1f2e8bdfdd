"""Recorded runs: files of other tuners, and tuning from them."""
