"""Sweeps: a file of axes and studies, trials run by the driver, and one table at the end."""
