"""The admin API of a storage as an ASGI app, with its users: `Console(app, auth=Tokens("ann:admin:SECRET"))`."""

from tenure.console.app import Console
from tenure.console.requests import ConsoleRequest
from tenure.console.users import Auth, ProxyAuth, Role, Token, Tokens, User

__all__ = ["Auth", "Console", "ConsoleRequest", "ProxyAuth", "Role", "Token", "Tokens", "User"]
