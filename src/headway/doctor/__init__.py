"""The doctor: checks whether a conclusion about a model may be drawn."""
