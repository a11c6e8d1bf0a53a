"""The networks between the members of a chaos test and a server: a proxy for each member."""

import asyncio

from tenure_testing.proxy import Proxy


class Networks:
    """A storage that the members reach through proxies. `port`: the port of the server, set before the first use."""

    def __init__(self) -> None:
        self.port = 0
        self._proxies: dict[str, Proxy] = {}

    def network(self, member: str) -> Proxy:
        """Return the proxy between a member and the server."""
        proxy = self._proxies.get(member)
        if proxy is None:
            proxy = self._proxies[member] = Proxy(self.port, seed=len(self._proxies))
            proxy.__enter__()
        return proxy

    def networks(self) -> list[Proxy]:
        """Return all proxies."""
        return list(self._proxies.values())

    def port_for(self, member: str) -> int:
        """Return the port for a member. The conductor, "", connects to the server directly."""
        return self.network(member).port if member else self.port

    async def close_networks(self) -> None:
        """End all proxies. Idempotent."""
        proxies, self._proxies = self._proxies, {}
        for proxy in proxies.values():
            await asyncio.to_thread(proxy.__exit__, None, None, None)
