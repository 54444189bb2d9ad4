"""What people see. Knows only the JSON of the run folders; never imports torch."""
