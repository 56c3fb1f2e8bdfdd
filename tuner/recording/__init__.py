"""Recorded trials: journals of searches, files of other tuners, and searches of recordings."""
