"""Custom GPU operators, each with a plain PyTorch version; they know nothing about models."""
