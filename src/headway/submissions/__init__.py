"""Many submissions, one adapter: each is examined by the doctor in a process of its own."""
