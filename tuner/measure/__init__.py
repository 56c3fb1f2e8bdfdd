"""Trials of variants: compile pool, worker process, evaluation and the final duel."""
