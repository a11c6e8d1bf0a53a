"""The storage in Redis or Valkey: one guarantee for many machines."""
