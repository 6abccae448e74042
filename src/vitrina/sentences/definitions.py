"""What is wrong with a definition."""

SENTENCES = {
    "definition.above": "{path} must be greater than {limit}{given}",
    "definition.after_itself": "run_after.{place}: pipeline {name} cannot run after itself",
    "definition.after_nobody": (
        "pipeline {name} cannot run after {after!r}: there is no such pipeline; create it first, or apply both together"
    ),
    "definition.after_twice": "run_after.{place}: {name} is listed twice",
    "definition.at_least": "{path} must be greater than or equal to {limit}{given}",
    "definition.at_most": "{path} must be less than or equal to {limit}{given}",
    "definition.below": "{path} must be less than {limit}{given}",
    "definition.body": "the body",
    "definition.check_limits": "min {least} is greater than max {most}, so no number of rows can pass",
    "definition.check_max_age": "max_age {max_age!r} is not a duration: write 30m, 6h, 2d or PT6H",
    "definition.check_needs_reader": (
        "check {name} uses SQL or names a table, so it needs a read-only login, and the target's connection"
        " {connection!r} has none; move the condition into the source query, or use a target in the default database"
    ),
    "definition.check_needs_sql": (
        "check {name} has kind {kind}, which works only for a table in Postgres, not for {target}: remove the check, or"
        " move the condition into the source query"
    ),
    "definition.check_query": "check {name}: {message}",
    "definition.check_reserved": (
        "check name {name!r} is reserved for a guard that every pipeline has: choose another name"
    ),
    "definition.check_row_count": "a row_count check needs min, max or last_runs: set at least one of them",
    "definition.check_twice": "two checks are named {name!r}: rename one of them",
    "definition.circle": "run_after forms a cycle: {names}; remove one of them from the run_after of another",
    "definition.connection_of_another": (
        "connection {name!r} belongs to connector {actual}, but {path} needs a connection of {wanted}"
    ),
    "definition.cron": (
        "cron {schedule!r} is not valid or never fires; write 30s, 15m, 1h, 1d, an ISO-8601 duration such as PT15M, or"
        " cron such as '0 3 * * *' or '0 3 * * * Europe/Moscow'"
    ),
    "definition.column_long": (
        "the column name {column!r} takes {size} bytes, and Postgres keeps {most} at most: choose a shorter one"
        " (a Cyrillic character takes two bytes)"
    ),
    "definition.column_of_system": (
        "{column!r} is a system column that every table in Postgres has: choose another name"
    ),
    "definition.soft_target": (
        "options.deletes.soft needs a table in Postgres without options.history, not {target}: a history keeps deleted"
        " rows anyway"
    ),
    "definition.deletes_none_and": (
        "options.deletes: none keeps rows that left the source, which contradicts {option}: remove one of the two"
    ),
    "definition.deletes_none_live": (
        "options.deletes: none is for full loads: mode 'live' keeps the target equal to the query, so it deletes rows"
        " that leave the query"
    ),
    "definition.deletes_of_full": (
        "options.deletes.scan is for mode 'incremental': a full load removes rows that left the source anyway"
    ),
    "definition.deletes_of_others": (
        "options.deletes cannot be combined with options.shared_target: rows that this source lacks may belong to"
        " another pipeline"
    ),
    "definition.partition_ways": "options.table.partition_by needs a column in either hash or range, not in both",
    "definition.no_delete_scan": (
        "{target} cannot delete single rows, which options.deletes.scan requires: use mode 'full', which replaces the"
        " contents of the target, or choose another target"
    ),
    "definition.no_delete_when": (
        "{target} does not support options.delete_when, so rows marked as deleted would be written like any other:"
        " filter them out in the query and use mode 'full', or choose another target"
    ),
    "definition.scan_of_python": (
        "options.deletes.scan compares with all rows of the source, but the Python source {source!r} returns only new"
        " rows: use mode 'full', which removes rows that left the source"
    ),
    "definition.first_step": "the first step must be SQL (it reads the source), not {task_type}",
    "definition.given": ", not {value}",
    "definition.history_and": (
        "options.history cannot be combined with options.{option}: {value}, which would overwrite or mix states"
    ),
    "definition.unique_of_kept": (
        "options.{option} keeps rows that left the source, and a unique index would still reserve their values: remove"
        " `unique`, or add an index on the current rows to the table yourself"
    ),
    "definition.history_key": (
        "target_key names {column!r}, a column of options.history: name only columns that identify a row of the source"
    ),
    "definition.history_names": "the columns of options.history need three different names, not {names}",
    "definition.history_target": (
        "{target} cannot keep a history: options.history needs a table in Postgres, schema.table, as the target"
    ),
    "definition.index_columns": (
        "an index with the method {method} has one column, not {columns}: create an index for each, or use btree"
    ),
    "definition.index_unique": "an index with the method {method} cannot be unique: use btree, or omit `unique`",
    "definition.index_part": "{name} is {part}: write an object, such as {{'type': 'keyword'}} for a field",
    "definition.index_parts": "{unknown}: an index has only `settings` and `mappings`",
    "definition.label": "label {key} must be a string of up to {most} characters",
    "definition.label_key": (
        "label {key!r} is not valid: use letters, digits and _ . / -, and begin with a letter or a digit"
    ),
    "definition.labels": 'labels must be an object of strings, such as {{"team": "core"}}',
    "definition.live_delete_when": (
        "options.delete_when cannot be combined with mode 'live', which deletes rows that leave the query: filter them"
        " out in the query's WHERE"
    ),
    "definition.live_needs_query": (
        "mode 'live' needs a query over a PostgreSQL source, because it reads changes from the source's log"
    ),
    "definition.live_reload": "options.live.reload {reload!r} is not a duration: write 30s, 15m, 1h or PT15M",
    "definition.live_shared": (
        "mode 'live' deletes rows that leave the query, but options.shared_target says that other pipelines write to"
        " the target as well: choose a separate target"
    ),
    "definition.missing": "{path} is required",
    "definition.more": "and {count} more",
    "definition.must": "{path} must {message}{given}",
    "definition.name": (
        "name must have 1 to 100 letters, digits, dots, dashes or underscores, and begin with a letter or a digit"
    ),
    "definition.name_is_uuid": "a name may not look like a UUID, because a pipeline can be looked up by name or by id",
    "definition.needs_incremental_key": (
        "mode 'incremental' needs incremental_key, the column that shows which rows are new"
    ),
    "definition.needs_query": "a SQL pipeline needs source_query or tasks",
    "definition.needs_step": "a PYTHON pipeline needs python_task, the name of a registered step or source",
    "definition.needs_target_connection": (
        "{target} needs options.target_connection, the name of a connection of connector {connector}"
    ),
    "definition.no_boolean": "{path} must be a valid boolean{given}",
    "definition.no_integer": "{path} must be a valid integer{given}",
    "definition.no_number": "{path} must be a valid number{given}",
    "definition.no_object": "{path} must be a valid dictionary{given}",
    "definition.no_params": "{step} takes no params, but got {params}",
    "definition.no_text": "{path} must be a valid string{given}",
    "definition.not_a_list": '{path} must be a list, such as ["a", "b"]',
    "definition.not_a_step": (
        "{where} {name!r} is not the name of a Python step: names have lower-case letters, digits and underscores, and"
        " begin with a letter; `GET /transforms` lists them"
    ),
    "definition.not_a_table": "source_table {table!r} is not schema.table; write anything else as a query",
    "definition.one_of": "{path} must be {limit}{given}",
    "definition.order_begins": "order_index begins at {first}; begin at 0 or 1",
    "definition.order_gap": "order_index {order} is missing; number the steps without gaps",
    "definition.order_repeated": "order_index {order} is used by {steps} steps; each step needs its own",
    "definition.other": "{path}: {message}{given}",
    "definition.other_steps": "step {step} must be PYTHON: only the first step is SQL",
    "definition.schedule": (
        "{field} {schedule!r} is not understood; write 30s, 15m, 1h, 1d, an ISO-8601 duration such as PT15M, or cron"
        " such as '0 3 * * *' or '0 3 * * * Europe/Moscow'"
    ),
    "definition.schedule_range": "{field} {schedule!r} is not between one second and ten years",
    "definition.schedule_too_far": "{field} {schedule!r} is next due after year 9999",
    "definition.several": "{count} fields are not valid: {problems}",
    "definition.engine": "options.engine {name!r} is not installed here; available: {engines}",
    "definition.source_type": "source_type {name!r} is not a connector that opens sources here; available: {sources}",
    "definition.step_lacks": "step {step} has no {field}",
    "definition.table_target": "options.table needs a table in Postgres, schema.table, not {target}",
    "definition.table_and_query": "source_table replaces the query: remove it, or remove {other}",
    "definition.target_of_step": "step {step} sets target_table {target!r}, which only the last step may do",
    "definition.text_too_long": "{path}: {message}{given}",
    "definition.text_too_short": "{path}: {message}{given}",
    "definition.timeout_too_long": (
        "{path} {asked:g} is more than this installation allows ({limit:g} s, VITRINA_STATEMENT_TIMEOUT_SECONDS)"
    ),
    "definition.too_many_labels": "a pipeline has at most {most} labels",
    "definition.unknown_connection": (
        "connection {name!r} is not configured; known: {known} (the operator sets VITRINA_CONN_{variable}, or adds it"
        " with `vitrina connections add`)"
    ),
    "definition.unknown_field": "{path} is not a field that can be set here",
    "definition.unknown_field_near": "{path} is not a field that can be set here: did you mean {near}?",
    "definition.unknown_step": "no live runner has the Python {what} {name!r}; available: {known}",
    "definition.unknown_zone": "time zone {zone!r} in {schedule!r} is unknown",
    "definition.value_long": "it is longer than {most} characters of JSON: keep large tables in the database",
    "definition.value_nan": "it contains NaN or an infinite number, which JSON cannot represent: use a string or null",
    "definition.value_nested": "it is nested more than {levels} levels deep: keep parameters flat, or name a file",
    "target.forbidden": (
        "target_table {target!r} is not allowed here; allowed: {allowed} (the operator sets VITRINA_ALLOWED_TARGETS)"
    ),
    "target.malformed": (
        "target_table {target!r} is not a target: write analytics.<table> in lower case for a mart or {prefix}<index>"
        " for a search index"
    ),
    "target.no_profile": "the contents of {target} cannot be profiled: its connector cannot read them back",
    "target.not_there": "{target} does not exist yet: run the pipeline first",
    "target.unknown_prefix": (
        "target_table {target!r} is not a target: write analytics.<table> in lower case for a mart or {prefix}<index>"
        " for a search index; no connector with the prefix {given!r} is installed here, only {known}"
    ),
    "params.above": "{field} must be at most {most}",
    "params.below": "{field} must be at least {least}",
    "params.missing": "{field}.{name} is missing",
    "params.not_above": "{field} must be greater than {least}",
    "params.not_below": "{field} must be less than {most}",
    "params.not_one_of": "{field} must be one of {choices}",
    "params.other": "params.{name}: {message}",
    "params.too_few": "{field} needs at least {least} {unit}",
    "params.too_many": "{field} has {length} {unit}; at most {most} are allowed",
    "params.unknown": "there is no {field}.{name}; available: {known}",
    "params.wrong_kind": "{field} must be {wanted}, not {found}",
}
