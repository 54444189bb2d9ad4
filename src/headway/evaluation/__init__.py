"""Is a model right? Verdicts, losses and intervals."""
