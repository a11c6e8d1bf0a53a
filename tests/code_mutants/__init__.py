"""Mutants of the real code: each takes out one guard in SQL, Lua, worker or supervisor, and a named test must fail."""
