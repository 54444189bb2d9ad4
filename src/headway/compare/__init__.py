"""Runs found and set side by side; no torch in here."""
