"""Figures and the page, made only from the JSON of the run folders; never imports torch."""
