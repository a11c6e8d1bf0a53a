"""The exception that unwinds a handler which waits. It is not an error."""


class HandlerSuspended(BaseException):
    """Unwinds a handler that waits; the job goes on later, from the start of its handler.

    `finally` blocks and context managers run. Do not catch it: a handler that catches it and returns is rejected. A
    middleware sees it when a run is suspended.
    """
