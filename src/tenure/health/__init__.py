"""Health checks: assess whether jobs are being run, from the storage's view, and serve the result over HTTP."""
