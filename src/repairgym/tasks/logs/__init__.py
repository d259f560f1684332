"""What a log says: the one main error, its class, and whether two of them are the same."""
