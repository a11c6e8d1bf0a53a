"""Child processes: how they are started, how they end, and how they end with their parent."""
