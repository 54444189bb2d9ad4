"""Runs on disk: folders, configs and seals. Nothing here imports torch."""
