"""How little each head can see: budgets of windows, and the cache that needs no more memory than they do."""
