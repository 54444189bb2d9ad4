"""Many runs: a sweep's trials, on this machine's processes or on a Ray cluster; nothing that is done is lost."""
