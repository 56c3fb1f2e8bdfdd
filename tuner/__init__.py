"""Walks the line from config to record many times and keeps the best."""
