"""Mutants of the real code: each removes one guard in SQL, Lua, worker or supervisor, and a named test must fail."""
