"""Why a run failed, and what to do about it."""

SENTENCES = {
    "run.allow_relation": (
        "the operator may allow views and partitions to read it with VITRINA_ALLOWED_RELATIONS={name}"
    ),
    "run.backfill_failed": "the backfill failed: {message}",
    "run.bad_row": "the pipeline's row is not valid: {problems}",
    "run.bad_target": "target of {name}: {problems}",
    "run.bad_tasks": "task plan of {name}: {problems}",
    "run.behind_a_backfill": (
        "a run was requested at {at}, and the backfill before this run did not answer that request"
    ),
    "run.behind_a_load": (
        "a run was requested at {at}, and the run before this one resumed an interrupted load, which may have read the"
        " source earlier"
    ),
    "run.cancelled": "cancelled by {who}; rows committed before that stay",
    "run.cannot_connect": "cannot open the connection {connection!r}: {why}",
    "run.cannot_create": (
        "cannot create {target}: {message}; {login} needs CREATE ON SCHEMA {schema}, and USAGE on the schemas of the"
        " columns' types: grant it, or create the table by hand"
    ),
    "run.cannot_create_from": (
        "cannot create {target} from the query's result: {message}; cast the column in the query, or choose another"
        " target_key"
    ),
    "run.column_not_in_result": "{field} {column!r} is not in the query's result (it has: {columns})",
    "run.check_after_pass": (
        "check {check} of kind {kind} needs all rows, which {target} cannot provide after a pass: use mode full, or"
        " remove the check"
    ),
    "run.check_cannot": "check {check} cannot be evaluated: {message}",
    "run.check_column": "check {check} uses the column {column!r}, which the rows do not have; they have: {columns}",
    "run.check_failed": (
        "check {check} failed: {found}{more}; nothing was published, and {target} is unchanged. If the rows are right,"
        " publish them with `vitrina run {pipeline} --accept {check}`"
    ),
    "run.check_failed_after": (
        "check {check} failed: {found}{more}; the rows of this pass are already in {target}, and no other pass follows."
        " If they are right, continue with `vitrina run {pipeline} --accept {check}`"
    ),
    "run.check_failed_batch": (
        "check {check} failed: {found}{more}; the batch was not written to {target}. If the rows are right, write them"
        " with `vitrina run {pipeline} --accept {check}`"
    ),
    "run.check_place": "the rows have a column {column!r}, a name reserved for checks: rename it with AS",
    "run.check_type": (
        "check {check} cannot evaluate the column {column!r} of type {type} for this target: remove the check, or cast"
        " the column in the query"
    ),
    "run.or_accept": "or publish it once with `vitrina run {pipeline} --accept {check}`",
    "run.column_twice": (
        "the source query returns the column name {column!r} more than once: give each column a different name with AS"
    ),
    "run.column_unnamed": "the source query has a column without a name: give it one with AS",
    "run.columns_missing": (
        "{target} has {columns}, which this pipeline wrote before and no longer returns, so most rows would keep old"
        " values; drop the column(s), return them again, or set options.on_missing_columns to 'keep' or 'null'"
    ),
    "run.connection_lost": "a connection was lost: {reason}",
    "run.cursor_has_no_order": (
        "incremental_key {column!r} has type {type}, which has no order to resume from: choose another column"
    ),
    "run.cursor_in_future": (
        "the newest value of incremental_key {column} is {newest}, more than 15 minutes in the future in the time zone"
        " {zone}: set options.cursor_timezone to the zone in which it is written, or filter out rows from the future in"
        " the query"
    ),
    "run.cursor_is_float": (
        "incremental_key {column!r} has type {type}, and a load cannot resume exactly from a floating-point value; cast"
        " it to numeric in the query, or choose another column"
    ),
    "run.internal": "internal error: {kind}: {message}",
    "run.key_column_missing": "target_key column {column!r} is not in the query's result (it has: {columns})",
    "run.delete_when": (
        "options.delete_when names {column!r}, which is {type} in the query's result: name a boolean column that"
        " is not part of the key"
    ),
    "run.history_ahead": (
        "{target} has states of {latest}, later than the snapshot of this run ({at}), so another program wrote them;"
        " correct them, then reset the pipeline's checkpoint (`vitrina state NAME --reset`)"
    ),
    "run.history_column_given": (
        "the result has a column {column!r}, which options.history reserves in {target}: rename it with AS, or choose"
        " another name in options.history"
    ),
    "run.history_keys": (
        "{target} is not a history table: it needs a primary key on the key and {valid_from} with a unique index on the"
        " key WHERE {valid_to} IS NULL, or UNIQUE NULLS NOT DISTINCT on the key and {valid_to}; add either, or let a"
        " run create the table"
    ),
    "run.history_needs_gist": (
        "options.history.exclusion of {target}: the key column {column!r} has type {type}, which needs the extension"
        " btree_gist; run CREATE EXTENSION btree_gist in the mart's database, or remove the option"
    ),
    "run.history_value_repeated": (
        "{what}: {message} Another state has the value: limit the constraint to current rows (WHERE {valid_to} IS"
        " NULL), or make the value unique in the query"
    ),
    "run.history_value_taken": (
        "{what}: {message} The value belongs to another state. If its row has left the source, which an incremental run"
        " does not see, run once in mode 'full', which closes it; options.deletes.scan closes such rows on a schedule,"
        " before a run fails. If the state is closed, limit the constraint to current rows (WHERE {valid_to} IS NULL)"
    ),
    "run.key_is_not_unique": (
        "target_key ({columns}) is not a primary key or unique constraint of {schema}.{table}; add one, or name the"
        " columns of an existing one"
    ),
    "run.key_is_null": (
        "the key column {column!r} is NULL in a row of the source; {target} needs it to identify the row: filter such"
        " rows out in the query, or change target_key"
    ),
    "run.key_not_in_result": (
        "the query's result lacks {column!r}, part of the primary key of {schema}.{table} (the result has: {columns})"
    ),
    "run.key_repeated": (
        "{keys} key(s) occur more than once in the source, for example ({columns}) = ({example}); {target} needs one"
        " row per key: aggregate or deduplicate in the query, or change target_key"
    ),
    "run.key_tied": (
        "{keys} key(s) occur more than once in the source with an equal cursor ({cursor}), for example ({columns}) ="
        " ({example}), so nothing tells which row of {target} is the latest: set incremental_id_key to a column that"
        " differs in them, use a finer cursor, or return one row per key"
    ),
    "run.live_awaits_feed": "waiting for the feed that reads the source's log",
    "run.live_awaits_load": "waiting to be loaded again, because {reason}",
    "run.live_catalog_changed": "a followed table, view or partition changed in a way that the log does not record",
    "run.live_day": "a run of a live pipeline lasts at most a day; the next run continues from here",
    "run.live_feed_renewed": "the source's log since the last batch was not kept",
    "run.live_first_load": "nothing has been loaded yet that could be followed",
    "run.live_key_type": (
        "the key column {column!r} has type {type}, by which a search index cannot delete single documents in mode"
        " live: cast it to text in the query"
    ),
    "run.live_lets_go": "the run stops between two batches so that the target can be repaired",
    "run.live_letters": (
        "{letters} row(s) of the source were rejected on their way to {target}, more than options.max_dead_letters"
        " ({budget}): the target keeps its rows and is no longer followed; see `vitrina dead-letters list`, fix the"
        " mapping or the query, and run again"
    ),
    "run.live_load_asked": "a full load was requested",
    "run.live_made_key": (
        "Python steps compute the key column {column!r}, so a changed row of the source does not show which rows of the"
        " target are stale: use mode full or incremental"
    ),
    "run.live_many_changes": "{changes} changes at once: a full load is faster",
    "run.live_many_keys": "{keys} stale keys at once: a full load is faster",
    "run.live_no_identity": (
        "the connection {connection} may not call pg_control_system(), which identifies the database that is followed:"
        " GRANT EXECUTE ON FUNCTION pg_catalog.pg_control_system() to its reader"
    ),
    "run.live_not_ready": "the source cannot be followed: {problem}",
    "run.live_part_of_key": (
        "only {columns} of the key can be derived from changed rows, and a search index deletes by the whole key: "
        "use mode full or incremental"
    ),
    "run.live_reload": "options.live.reload requires a full load",
    "run.live_standby": (
        "the connection {connection} leads to a standby, and only a primary's log can be followed: point it at the"
        " primary"
    ),
    "run.live_target": "{target} cannot delete single rows, so it cannot be live: use mode full or incremental",
    "run.needs_key": "the target table does not exist yet: set target_key, the columns that identify a row",
    "run.never_reached": "no setting allows it: queries may not read the server's catalogs or the metastore",
    "run.no_columns": "the source query has no columns: select what the target should contain",
    "run.no_cursor": "the pipeline has no incremental_key: choose one, or mode 'full'",
    "run.no_current_view": (
        "cannot create the view {view} of options.history.current_view: {message}; drop or rename the object that"
        " conflicts with it, or remove the option"
    ),
    "run.no_history": (
        "{target} has no column {column!r} of type {type}, which options.history needs; add it, or choose a new target"
        " for the history"
    ),
    "run.no_message": "no message was stored",
    "run.no_primary_key": "{schema}.{table} has no primary key: add one, or set target_key",
    "run.no_query": "the pipeline has no source query",
    "run.no_range": "{source} cannot be read by range: run the pipeline without one",
    "run.no_schema": "cannot create {target}: schema {schema} does not exist",
    "run.no_value_of_cursor": (
        "{what} is {value!r}, which is not a valid value of incremental_key {column} ({type}): use a valid one; set a"
        " checkpoint with `vitrina state NAME --reset --cursor VALUE`"
    ),
    "run.none": "there is no run {id}; `GET /runs` lists the runs that are kept",
    "run.not_checked": "the runner could not check it",
    "run.not_profiled": "the target was not profiled after the run: {message}",
    "run.parameter_in_full": ":{parameter} is for incremental pipelines; this one is in mode 'full'",
    "run.preview_too_large": "the first {rows} rows are larger than {size} MB: request fewer rows, or shorten texts",
    "run.query_calls": (
        "{what} calls {name}{way}, a server function that does more than compute; remove the call, or ask the operator"
        " to add the function to VITRINA_ALLOWED_FUNCTIONS"
    ),
    "run.query_changes": "{what} locks or changes rows: a pipeline only reads its source",
    "run.query_does_not_fit": (
        "the query does not fit {schema}.{table}: {problems}. Cast in the query, or change the table"
    ),
    "run.query_failed": "the source query failed: {message}",
    "run.query_meets_rls": (
        "{message}. Rows would be left out silently: give the reader's login BYPASSRLS, or read a view instead"
    ),
    "run.query_reads": "{what} reads {name}{way}, outside the allowed schemas ({schemas}); {remedy}",
    "run.query_refused": "the source query is refused: {message}",
    "run.query_refused_at": "the source query is refused at line {line}, column {column}: {message}",
    "run.reading_failed": "reading the source failed: {message}",
    "run.runner_silent": "the runner stopped sending heartbeats; the next one continues from the checkpoint",
    "run.runner_stopped": "the runner was stopped",
    "run.other_database": (
        "a worker of this load reaches a different database than the runner, and it is not a replica of the runner's:"
        " correct the connection there"
    ),
    "run.snapshot_elsewhere": (
        "the workers of this load reach a different server of the source than the runner, where its snapshot does not"
        " exist: point their connection at the same server, or, for a full load that may be read in several snapshots,"
        " remove options.consistency and options.history"
    ),
    "run.snapshot_gone": "the snapshot that the load is read in no longer exists: {message}",
    "run.source_is_empty": "the source has no rows, but {target} does; to empty the target, set options.allow_empty",
    "run.source_silent": "the source has not responded for {seconds:.0f} s",
    "run.target_has_rls": (
        "target {schema}.{table} has row-level security that applies to the application's own login, so a load could"
        " not see all of its rows: make that login its owner, with NO FORCE ROW LEVEL SECURITY, or use another table"
    ),
    "run.target_is_no_table": "target {schema}.{table} is {kind}, not a table",
    "run.target_lacks_columns": (
        "{schema}.{table} lacks {columns}; add the columns, drop them from the query, or set options.on_schema_change"
        " to 'add_columns'"
    ),
    "run.target_replaced": "{target} was emptied or recreated by hand during the run",
    "run.the_query": "the source query",
    "run.too_costly": "{what} has an estimated cost of {cost:.0f}, more than options.max_cost {most:.0f}",
    "run.too_many_letters": (
        "{letters} document(s) were rejected, more than options.max_dead_letters ({budget}); see `vitrina dead-letters"
        " list`, fix the mapping or the query, and run again"
    ),
    "run.engine_pauses": (
        "the cluster of {engine} runs none of the ranges now: all of its executors are busy, or it is starting others"
    ),
    "run.engine_waits": "the cluster of {engine} has not begun yet: it is starting, or all of its executors are busy",
    "run.spark_hash_key": (
        "an executor of the Spark cluster has a different VITRINA_HASH_KEY than the runner, or none, so hashes would"
        " differ: set the runner's key there"
    ),
    "run.spark_job_failed": "the job on the Spark cluster failed: {reason}",
    "run.spark_no_answer": "the Spark cluster ended the job without a result for a range of the key",
    "run.spark_not_sent": (
        "what the Spark cluster needs for this load cannot be sent: {error}. Let the runner read the modules of"
        " VITRINA_TRANSFORMS and write to its temporary directory, or set options.engine = local"
    ),
    "run.spark_package_differs": (
        "executors of the Spark cluster have {package} {there}, the runner has {here}: install the same version in the"
        " cluster's image"
    ),
    "run.spark_package_missing": (
        "executors of the Spark cluster have no {package}, the runner has {here}: install it in the cluster's image"
    ),
    "run.spark_python_differs": (
        "executors of the Spark cluster have a different Python than the runner, which has {here}: install the same"
        " version in the cluster's image"
    ),
    "run.spark_refused_login": "the Spark Connect server rejects the token in the connection's URL",
    "run.spark_restarted": (
        "the Spark Connect server no longer knows the job: it was restarted, or it ended the session"
    ),
    "run.spark_server_differs": (
        "the cluster has Spark {there}, the runner's client is of {here}: install a client of the cluster's version on"
        " the runners, or a later Spark on the cluster"
    ),
    "run.spark_silent": (
        "the Spark cluster has not answered for {seconds:.0f} s: all of its executors may be busy, it cannot start"
        " any, or no Spark Connect server listens there"
    ),
    "run.spark_unreachable": (
        "the Spark Connect server does not answer: check that it is running and that the URL is right"
    ),
    "run.spark_wrong_url": (
        "the URL of the Spark Connect server is wrong, in the connection that options.spark.connection names: write"
        " {example}"
    ),
    "run.worker_lost": (
        "a process that loaded a range of the key ended without a result ({how}); the system may have run out of memory"
    ),
    "run.worker_not_started": "no process could be started for a range of the key: {error}",
    "run.worker_silent": "a process that loads a range of the key has not responded for {seconds:.0f} s",
    "run.would_cascade": (
        "{rows} row(s) left the source, but deleting them from {target} would cascade through {tables}; set"
        " options.allow_cascade if that is intended"
    ),
    "run.partition_key": (
        "options.table.partition_by names {column!r}, which is not part of the key of {target} ({key}), so rows of one"
        " key could be in several partitions: name a column of the key"
    ),
    "run.no_partition": (
        "cannot create the partition {partition}: {message}; remove the object that conflicts with it, or create a"
        " partition for these rows by hand"
    ),
    "run.partition_type": (
        "options.table.partition_by.range names {column!r}, which has type {type}: partition {target} by a date or a"
        " timestamp"
    ),
    "run.partition_value": (
        "{column} of a row is {value}, for which {target} has no partition: partitions are created for the years 1 to"
        " 9998; filter such rows out in the query, or create a default partition by hand"
    ),
    "run.partition_name": (
        "the name of the partition {name} is longer than 63 bytes: choose a target with a shorter name"
    ),
    "run.soft_column_given": (
        "the result has a column {column!r}, which options.deletes.soft reserves in {target}: rename it with AS, or"
        " choose another name there"
    ),
    "run.table_column": (
        "options.table.{option} names the column {column!r}, which {target} does not have (it has: {columns}); correct"
        " the name, or leave it out"
    ),
    "run.table_option": (
        "options.table.{option} asks for something that {target} cannot have: {message} (statement: {statement});"
        " change the option, or leave it out"
    ),
    "run.table_role": (
        "options.table.{option} names the role {role!r}, which the database of {target} does not have; correct the"
        " name, or CREATE ROLE first"
    ),
    "run.view_of_others": (
        "{view}, the view of options.history.current_view, is there, and Vitrina did not make it, so it is not"
        " replaced; drop or rename it, leave the option out, or hand the view over to Vitrina: {statement}"
    ),
    "run.view_name_long": (
        "the name of {view}, the view of options.history.current_view, is longer than 63 bytes: remove the option"
    ),
    "run.would_shrink": (
        "publishing would delete {removed} of {rows} rows of {target}; if the source really shrank that much, set"
        " options.allow_shrink and run again"
    ),
    "advice.add_columns": (
        "ALTER TABLE {schema}.{table} ADD the columns, take them out of the query, or set options.on_schema_change to"
        " add_columns, then run again."
    ),
    "advice.add_primary_key": (
        "Edit the pipeline and set target_key, or ALTER TABLE {schema}.{table} ADD PRIMARY KEY (...), then run again."
    ),
    "advice.allow_cascade": (
        "If the rows of {tables} should be deleted as well, set options.allow_cascade, then run again; otherwise drop"
        " ON DELETE CASCADE there."
    ),
    "advice.allow_empty": (
        "If the source is empty on purpose, set options.allow_empty, run once and unset it; otherwise find out why the"
        " query returns no rows."
    ),
    "advice.allow_shrink": (
        "If that many rows were really removed from the source, set options.allow_shrink, run once and unset it;"
        " otherwise find out why the query returns fewer rows."
    ),
    "advice.bad_check": "Correct the check in the definition, then run again.",
    "advice.bad_key": "Make target_key unique and not NULL in the source, or choose other columns, then run again.",
    "advice.cannot_connect": "Check that the database or server is running and that its address and login are right.",
    "advice.cast_columns": (
        "Cast these columns in the query to the types of {schema}.{table}, or change the table, then run again."
    ),
    "advice.cheaper": "Narrow the query with WHERE or add an index for it, or raise options.max_cost, then run again.",
    "advice.check_failed": (
        "Look at the rows that violate the check: correct the source, or accept the check by its name (--accept) if the"
        " rows are right."
    ),
    "advice.choose_cursor": (
        "Set incremental_key to a timestamp or whole-number column, or cast {column} in the query, then run again."
    ),
    "advice.config": "Ask the operator to correct the setting that the message names, then run again.",
    "advice.correct_definition": (
        "Edit the pipeline: the fields that are not accepted are marked. Correct and save them, then run again."
    ),
    "advice.correct_place": (
        "Edit the pipeline: the query is marked at line {line}, column {column}. Correct it there, then run again."
    ),
    "advice.create_schema": (
        "Create it (CREATE SCHEMA {schema}), or choose a target in a schema that exists, then run again."
    ),
    "advice.cursor_zone": (
        "Set options.cursor_timezone to the zone in which {column} is written, or filter out rows from the future with"
        " WHERE, then run again."
    ),
    "advice.disconnected": "Nothing to do if the server is back: another run continues from the checkpoint.",
    "advice.fatal": (
        "Open the run's log: the lines before the error show which part of the run failed. Correct the definition, the"
        " query or the target there, then run again."
    ),
    "advice.filter_null_keys": (
        "Add WHERE {column} IS NOT NULL to the query, or choose another target_key, then run again."
    ),
    "advice.free_value": (
        "Run once in mode full, which closes rows that left the source, then set mode back to incremental; or limit the"
        " constraint to current rows (WHERE {valid_to} IS NULL) and run again."
    ),
    "advice.forbidden_target": "Choose an allowed target (GET /targets), or ask the operator to allow this one.",
    "advice.full_has_no_range": "Take :{parameter} out of the query, or set mode to incremental, then run again.",
    "advice.give_column": "Add {column} to the query's SELECT, or correct {field}, then run again.",
    "advice.give_key": (
        "Add {column} to the query's SELECT, or set target_key to columns that the query returns, then run again."
    ),
    "advice.grant_create": (
        "Ask an administrator to run GRANT CREATE ON SCHEMA {schema} TO {login}, or create the table by hand, then run"
        " again."
    ),
    "advice.group_by_key": (
        "Make the query return one row for each ({columns}) with GROUP BY or DISTINCT ON, or add the column that"
        " distinguishes the rows to target_key, then run again."
    ),
    "advice.internal": (
        "This is a bug in Vitrina: run again; if it fails in the same way, report it with the last lines of the run's"
        " log."
    ),
    "advice.invalid": "Open the definition, correct the field that the message names, save it, then run again.",
    "advice.invalid_query": "Correct source_query: the message says what is not allowed and where. Then run again.",
    "advice.lease_lost": (
        "Nothing to do: another runner continues from the checkpoint. If this happens repeatedly, look at the runners'"
        " logs."
    ),
    "advice.let_through": (
        "Make the application's login the owner of the target, or disable row-level security on it, then run again."
    ),
    "advice.limit_constraint": (
        "Limit the constraint to current rows (WHERE {valid_to} IS NULL), or make the value unique in the query, then"
        " run again."
    ),
    "advice.look_at_letters": (
        "Look at the dead letters, grouped by error: correct the query or the index's mapping for each group, then run"
        " again; options.max_dead_letters sets how many a run may have."
    ),
    "advice.make_unique": (
        "ALTER TABLE {schema}.{table} ADD UNIQUE ({columns}), or set target_key to the columns of a constraint that"
        " exists, then run again."
    ),
    "advice.missing_columns": (
        "Return {columns} from the query again, drop the column from the table, or set options.on_missing_columns to"
        " keep or null, then run again."
    ),
    "advice.name_columns": "Give each column of the query a different name with AS, then run again.",
    "advice.not_carried": (
        "Cast the column that the message names to text in the query, or leave it out of the query, then run again."
    ),
    "advice.order_versions": (
        "Set incremental_id_key to a column that differs between rows with an equal {cursor}, choose a finer"
        " incremental_key, or return one row per key, then run again."
    ),
    "advice.own_table": "Choose a target that is a table, or rename the object of that name, then run again.",
    "advice.record": "Correct or remove the rejected rows (GET /dead-letters), then run again.",
    "advice.reset_checkpoint": (
        "Reset the checkpoint to a value of {column} (More, Reset the checkpoint), then run again."
    ),
    "advice.runner_stopped": "Nothing to do: the next runner continues from the checkpoint.",
    "advice.set_key": "Edit the pipeline and name in target_key the columns that identify a row, then run again.",
    "advice.shrink_refused": (
        "If that many rows were really removed from the source, run once with options.allow_shrink (or allow_empty)"
        " set."
    ),
    "advice.source_query_failed": "Correct source_query (a validation tries it against the source), then run again.",
    "advice.step_failed": (
        "Preview the pipeline: it shows the rows before and after the steps. Correct the step or its params, or make it"
        " reject such rows (params.on_error: dead_letter), then run again."
    ),
    "advice.target_mismatch": (
        "Compare the query's columns, which Preview shows, with the target's, which the message shows; change the query"
        " or the table, then run again. With options.on_schema_change: add_columns, a run adds missing columns to the"
        " target."
    ),
    "advice.target_taken": "Nothing to do: it runs as soon as the other pipeline has finished writing to this target.",
    "advice.test_connection": (
        "Test the connection {connection} on the Connections page, which shows what a runner finds there. Run again"
        " when the test passes."
    ),
    "advice.transient": "Run again: the run continues from the checkpoint.",
    "attention.claim": (
        "no runner can start it, because its row in etl.etl_pipelines cannot be handled: {kind}: {message}; correct the"
        " row, then run it"
    ),
    "attention.recovery": (
        "no runner can take it over from the one that stopped sending heartbeats, because its row in etl.etl_pipelines"
        " cannot be handled: {message}; correct the row"
    ),
    "attention.schedule": "the schedule is not followed: {reason}",
}
