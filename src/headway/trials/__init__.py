"""Many configs, one driver: trials in this process, on local processes or on a Ray cluster; nothing done is lost."""
