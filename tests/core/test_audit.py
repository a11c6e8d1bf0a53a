"""The record of an operator's act, and the texts that it keeps."""

from msgspec import structs

from tenure.core.audit import LONGEST, OperatorAct, fitted

ACT = OperatorAct(id="1", actor="ann", role="admin", via="api", action="jobs.cancel", target="mail/1")


def test_the_first_write_is_stamped_as_asked() -> None:
    assert ACT.written(None, 5) == structs.replace(ACT, asked=5)


def test_the_write_with_a_verdict_keeps_all_else_of_the_record() -> None:
    kept = ACT.written(None, 5)
    late = structs.replace(ACT, actor="bob", asked=9, verdict="gone", count=3)

    assert late.written(kept, 7) == structs.replace(kept, done=7, verdict="gone", count=3)


def test_no_write_changes_a_record_that_has_a_verdict() -> None:
    ended = structs.replace(ACT, verdict="done").written(None, 5)

    assert structs.replace(ACT, verdict="gone").written(ended, 7) == ended
    assert ACT.written(ended, 7) == ended


def test_a_caller_cannot_set_the_instant_of_the_end() -> None:
    assert structs.replace(ACT, done=3).written(None, 5).done is None
    assert structs.replace(ACT, done=3, verdict="done").written(None, 5).done == 5


def test_long_texts_are_cut_with_a_mark() -> None:
    act = fitted(structs.replace(ACT, reason="r" * 501, verdict="v" * 500))

    assert act.reason == f"{'r' * 499}…"
    assert act.verdict == "v" * 500
    assert len(LONGEST) == sum(field.type in (str, str | None) for field in structs.fields(OperatorAct)) - 1


def test_characters_that_no_database_can_hold_are_replaced() -> None:
    act = fitted(structs.replace(ACT, target="a\0b", reason="\ud800"))

    assert (act.target, act.reason, act.op) == ("a?b", "?", None)
