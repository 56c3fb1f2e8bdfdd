"""Trying variants: compile pool, worker process, evaluation and the final duel."""
