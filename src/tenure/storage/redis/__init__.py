"""The storage in Redis or Valkey, which many machines can share."""
