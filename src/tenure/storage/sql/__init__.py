"""The verbs of the storages that keep their jobs in SQL tables, free of any one database's dialect."""
