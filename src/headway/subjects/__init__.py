"""Subjects: the models that can be studied."""
