"""Sweeps: a file of axes and studies, its trials carried out by the driver, one table at the end."""
