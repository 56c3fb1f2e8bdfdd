"""What to try: legal configs, pruned by the model, ranked, sampled."""
