"""What the leader does."""
