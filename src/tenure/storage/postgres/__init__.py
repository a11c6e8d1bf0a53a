"""The PostgreSQL storage: jobs in one schema of a database, shared by any number of processes and machines."""
