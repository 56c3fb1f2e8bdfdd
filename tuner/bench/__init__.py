"""Timing lists of shapes beside other libraries."""
