"""Making one, or many."""
