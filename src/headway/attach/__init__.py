"""Users' models: finds the sites, proves every intervention, returns a Subject."""
