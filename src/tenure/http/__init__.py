"""Serves ASGI apps over HTTP: the types of ASGI, and a server with limits against slow clients."""
