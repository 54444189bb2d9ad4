"""Many configs, one driver: trials run in this process, in local processes or on Ray; finished work is never lost."""
