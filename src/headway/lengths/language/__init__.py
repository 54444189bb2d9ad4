"""How far does a language model work? Recall with exact answers, loss by position, cures, and what stops it."""
