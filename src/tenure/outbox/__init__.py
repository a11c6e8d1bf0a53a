"""The outbox: a table in a user's database that keeps calls of committed transactions until a relay enqueues them."""
