"""Training one model, or many as one stack."""
