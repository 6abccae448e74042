"""Advise on errors of runs, by the sentence of the message, else by the error code."""

from vitrina import sentences
from vitrina.sentences import Sentence, say


def next_step(code: str | None, message: str | None = None) -> Sentence:
    """Return the advice for an error (`vitrina.errors`), with the names from its message."""
    told = sentences.said(message) or {"code": "", "params": {}}
    if told["code"] == "run.backfill_failed" and isinstance(told["params"]["message"], dict):
        told = told["params"]["message"]
    chosen = BY_MESSAGE.get(told["code"])
    if chosen is None:
        return say(f"advice.{code if code in BY_CODE else 'fatal'}")
    wanted = sentences.params_of(sentences.CATALOG[chosen])
    return say(chosen, **{name: told["params"][name] for name in wanted})


BY_CODE = frozenset(
    {
        "bad_check",
        "bad_key",
        "cannot_connect",
        "check_failed",
        "config",
        "disconnected",
        "fatal",
        "forbidden_target",
        "internal",
        "invalid",
        "invalid_query",
        "lease_lost",
        "not_carried",
        "record",
        "runner_stopped",
        "shrink_refused",
        "source_query_failed",
        "step_failed",
        "target_mismatch",
        "target_taken",
        "transient",
    }
)

# Advice for a sentence is more precise than advice for an error code.
BY_MESSAGE = {
    "query.refused": "advice.correct_place",
    "query.refused_for_good": "advice.correct_place",
    "run.bad_row": "advice.correct_definition",
    "run.bad_target": "advice.correct_definition",
    "run.bad_tasks": "advice.correct_definition",
    "run.cannot_connect": "advice.test_connection",
    "run.cannot_create": "advice.grant_create",
    "run.column_not_in_result": "advice.give_column",
    "run.column_twice": "advice.name_columns",
    "run.column_unnamed": "advice.name_columns",
    "run.columns_missing": "advice.missing_columns",
    "run.cursor_has_no_order": "advice.choose_cursor",
    "run.cursor_in_future": "advice.cursor_zone",
    "run.cursor_is_float": "advice.choose_cursor",
    "run.history_value_repeated": "advice.limit_constraint",
    "run.history_value_taken": "advice.free_value",
    "run.internal": "advice.internal",
    "run.key_column_missing": "advice.give_key",
    "run.key_is_not_unique": "advice.make_unique",
    "run.key_is_null": "advice.filter_null_keys",
    "run.key_not_in_result": "advice.give_key",
    "run.key_repeated": "advice.group_by_key",
    "run.key_tied": "advice.order_versions",
    "run.live_letters": "advice.look_at_letters",
    "run.needs_key": "advice.set_key",
    "run.no_primary_key": "advice.add_primary_key",
    "run.no_query": "advice.correct_definition",
    "run.no_schema": "advice.create_schema",
    "run.no_value_of_cursor": "advice.reset_checkpoint",
    "run.parameter_in_full": "advice.full_has_no_range",
    "run.query_does_not_fit": "advice.cast_columns",
    "run.query_refused_at": "advice.correct_place",
    "run.source_is_empty": "advice.allow_empty",
    "run.target_has_rls": "advice.let_through",
    "run.target_is_no_table": "advice.own_table",
    "run.target_lacks_columns": "advice.add_columns",
    "run.too_costly": "advice.cheaper",
    "run.too_many_letters": "advice.look_at_letters",
    "run.would_cascade": "advice.allow_cascade",
    "run.would_shrink": "advice.allow_shrink",
}
