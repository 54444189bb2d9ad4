"""What is on disk. Nothing here imports torch."""
