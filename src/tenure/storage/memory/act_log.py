"""The model's audit log: the acts of operators, newest first."""

from tenure.core.audit import OperatorAct
from tenure.core.retention import TRIM_BATCH, KeepRule
from tenure.storage.cursors import place_of
from tenure.storage.protocol import ActsPage, ActsQuery


class ActLog:
    """Records of acts by id, the oldest first, each with its number."""

    def __init__(self) -> None:
        self._acts: dict[str, tuple[int, OperatorAct]] = {}
        self._last = 0

    def record(self, act: OperatorAct, keep: KeepRule, now: int) -> OperatorAct:
        """Write an act for the first or the second time; return its record."""
        number, kept = self._acts.get(act.id, (0, None))
        record = act.written(kept, now)
        if kept is None:
            self._last = number = self._last + 1
        self._acts[act.id] = (number, record)
        if kept is None:
            self._trim(keep, now)
        return record

    def page(self, query: ActsQuery) -> ActsPage:
        """Return the newest acts that match and precede the cursor."""
        before = None if query.after is None else place_of(query.after)
        wanted = {"actor": query.actor, "action": query.action, "target": query.target}
        found = [
            (number, act)
            for number, act in reversed(self._acts.values())
            if (before is None or number < before)
            and all(value is None or getattr(act, name) == value for name, value in wanted.items())
        ]
        shown = found[: query.limit]
        return ActsPage(tuple(act for _, act in shown), str(shown[-1][0]) if len(found) > len(shown) else None)

    def _trim(self, keep: KeepRule, now: int) -> None:
        surplus = 0 if keep.count is None else len(self._acts) - keep.count
        for place, (id_, (_, act)) in enumerate(list(self._acts.items())[:TRIM_BATCH]):
            if place >= surplus and (act.asked or 0) > now - keep.age:
                return
            del self._acts[id_]
