"""The wall between deciding and remembering."""
