"""Child processes: how Tenure starts them, learns how they ended, and ends them when their parent dies."""
