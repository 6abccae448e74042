"""Why a run failed, and what to do about it."""

SENTENCES = {
    "run.allow_relation": (
        "the operator may allow views and partitions to lead there with VITRINA_ALLOWED_RELATIONS={name}"
    ),
    "run.backfill_failed": "the backfill failed: {message}",
    "run.bad_row": "the pipeline's row is not valid: {problems}",
    "run.bad_target": "target of {name}: {problems}",
    "run.bad_tasks": "task plan of {name}: {problems}",
    "run.behind_a_backfill": "a run was asked for at {at}, and the backfill before this one was no answer to that",
    "run.behind_a_load": (
        "a run was asked for at {at}, and the run before this one went on with an interrupted load, which may have read"
        " the source earlier"
    ),
    "run.cancelled": "cancelled by {who}; what was committed before stays",
    "run.cannot_connect": "cannot connect to the connection {connection!r}: {why}",
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
        "check {check} of kind {kind} is about all rows, which {target} cannot be asked for after a pass: use mode"
        " full, or leave it out"
    ),
    "run.check_cannot": "check {check} cannot be judged: {message}",
    "run.check_column": (
        "check {check} looks at the column {column!r}, which the rows do not have; they have: {columns}"
    ),
    "run.check_failed": (
        "check {check} failed: {found}{more}; nothing was published, and {target} is as it was. If the rows are right,"
        " publish them with `vitrina run {pipeline} --accept {check}`"
    ),
    "run.check_failed_after": (
        "check {check} failed: {found}{more}; the rows of this pass are in {target} already, and no other pass follows."
        " If they are right, go on with `vitrina run {pipeline} --accept {check}`"
    ),
    "run.check_failed_batch": (
        "check {check} failed: {found}{more}; the batch was not written to {target}. If the rows are right, write them"
        " with `vitrina run {pipeline} --accept {check}`"
    ),
    "run.check_place": "the rows have a column {column!r}, a name that checks need themselves: rename it with AS",
    "run.check_type": (
        "check {check} cannot judge the column {column!r} of type {type} on its way to this target: leave it out, or"
        " cast the column in the query"
    ),
    "run.or_accept": "or publish it once with `vitrina run {pipeline} --accept {check}`",
    "run.column_twice": "the source query gives the column name {column!r} more than once: give each its own with AS",
    "run.column_unnamed": "the source query has a column without a name: give it one with AS",
    "run.columns_missing": (
        "{target} has {columns}, which this pipeline wrote before and no longer gives: most rows would keep old values;"
        " drop the column(s), give them again, or set options.on_missing_columns to 'keep' or 'null'"
    ),
    "run.connection_lost": "a connection was lost: {reason}",
    "run.cursor_has_no_order": "incremental_key {column!r} is {type}, which has no order to resume from",
    "run.cursor_in_future": (
        "the newest value of incremental_key {column} is {newest}, more than 15 minutes in the future of the time zone"
        " {zone} in which it is read: set options.cursor_timezone to the zone in which it is written, or leave rows"
        " from the future out in the query"
    ),
    "run.cursor_is_float": (
        "incremental_key {column!r} is {type}: floating-point values cannot be resumed from exactly; cast it to numeric"
        " in the query or choose another column"
    ),
    "run.internal": "internal error: {kind}: {message}",
    "run.key_column_missing": "target_key column {column!r} is not in the query's result (it has: {columns})",
    "run.delete_when": (
        "options.delete_when names {column!r}, which is {type} in the query's result: name a boolean column that is no"
        " part of the key"
    ),
    "run.history_ahead": (
        "{target} has states of {latest}, later than the snapshot of this run ({at}): another program wrote them;"
        " correct them, then reset the pipeline's checkpoint (`vitrina state NAME --reset`)"
    ),
    "run.history_column_given": (
        "the result has a column {column!r}, which options.history of {target} needs itself: give it another name with"
        " AS, or name another column in options.history"
    ),
    "run.history_keys": (
        "{target} is no table of a history: it needs a primary key of the key and {valid_from}, and a unique index of"
        " the key WHERE {valid_to} IS NULL; add them, or let a run create the table"
    ),
    "run.history_needs_gist": (
        "options.history.exclusion of {target}: the key column {column!r} is {type}, which needs the extension"
        " btree_gist; CREATE EXTENSION btree_gist in the database of the mart, or leave the option out"
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
        "{keys} key(s) come more than once in the source, for example ({columns}) = ({example}); {target} needs one row"
        " per key: aggregate or deduplicate in the query, or change target_key"
    ),
    "run.live_awaits_feed": "waiting for the source's log, which another part of the platform reads",
    "run.live_awaits_load": "waiting until it may be loaded again, because {reason}",
    "run.live_catalog_changed": "a followed table, view or partition was changed in a way that the log does not say",
    "run.live_day": "a run of a live pipeline lasts a day at most; the next one goes on from here",
    "run.live_feed_renewed": "the source's log was not kept since the last batch",
    "run.live_first_load": "nothing was loaded yet that could be followed",
    "run.live_key_type": (
        "the key column {column!r} has the type {type}, of which a search index cannot delete single documents in "
        "mode live: cast it to text in the query"
    ),
    "run.live_lets_go": "the target is repaired between two batches",
    "run.live_letters": (
        "{letters} row(s) of the source are refused on their way to {target}, more than options.max_dead_letters"
        " ({budget}): it keeps what it has and is not followed any more; see `vitrina dead-letters list`, mend the"
        " mapping or the query, and run again"
    ),
    "run.live_load_asked": "a full load was asked for",
    "run.live_made_key": (
        "Python steps make the key column {column!r}, so a changed row of the source does not say which rows of "
        "the target are stale: use mode full or incremental"
    ),
    "run.live_many_changes": "{changes} changes at once: a full load is quicker",
    "run.live_many_keys": "{keys} stale keys at once: a full load is quicker",
    "run.live_no_identity": (
        "the connection {connection} may not call pg_control_system(), by which a database that is followed is "
        "known: GRANT EXECUTE ON FUNCTION pg_catalog.pg_control_system() to its reader"
    ),
    "run.live_not_ready": "the source cannot be followed: {problem}",
    "run.live_part_of_key": (
        "only {columns} of the key can be derived from changed rows, and a search index deletes by the whole key: "
        "use mode full or incremental"
    ),
    "run.live_reload": "options.live.reload asks for a full load",
    "run.live_standby": (
        "the connection {connection} leads to a standby, and only a primary's log can be followed: let it lead to the"
        " primary"
    ),
    "run.live_target": "{target} cannot delete single rows, so it cannot be live: use mode full or incremental",
    "run.needs_key": "the target table does not exist yet: set target_key, the columns that identify a row",
    "run.never_reached": "no setting allows it: the server's catalogs and the metastore are not for queries",
    "run.no_columns": "the source query has no columns: select what the target shall hold",
    "run.no_cursor": "the pipeline has no incremental_key: choose one, or mode 'full'",
    "run.no_current_view": (
        "the view {view} of options.history.current_view cannot be made: {message}; drop or rename what is in its way,"
        " or leave the option out"
    ),
    "run.no_history": (
        "{target} has no column {column!r} of type {type}, which options.history needs; add it, or choose a new target"
        " for the history"
    ),
    "run.no_message": "no message was kept",
    "run.no_primary_key": "{schema}.{table} has no primary key: add one, or set target_key",
    "run.no_query": "the pipeline has no source query",
    "run.no_range": "{source} cannot be asked for a range: run the pipeline without one",
    "run.no_schema": "cannot create {target}: schema {schema} does not exist",
    "run.no_value_of_cursor": (
        "{what} is {value!r}, which is no value of incremental_key {column} ({type}): ask with one that is; a"
        " checkpoint is set with `vitrina state NAME --reset --cursor VALUE`"
    ),
    "run.none": "there is no run {id}; `GET /runs` lists the ones that are kept",
    "run.not_checked": "the runner could not check it",
    "run.not_profiled": "the target was not looked at after the run: {message}",
    "run.parameter_in_full": ":{parameter} is for incremental pipelines; this one is in mode 'full'",
    "run.preview_too_large": "the first {rows} rows are larger than {size} MB: ask for fewer, or shorten texts",
    "run.query_calls": (
        "{what} calls {name}{way}, a function of the server that does more than compute; leave it out, or have the"
        " operator add it to VITRINA_ALLOWED_FUNCTIONS"
    ),
    "run.query_changes": "{what} locks or changes rows: a pipeline only reads its source",
    "run.query_does_not_fit": (
        "the query does not fit {schema}.{table}: {problems}. Cast in the query, or change the table"
    ),
    "run.query_failed": "the source query failed: {message}",
    "run.query_meets_rls": (
        "{message}. Rows would be left out without a word: give the reader's login BYPASSRLS, or a view of its own"
    ),
    "run.query_reads": "{what} reads {name}{way}, outside the allowed schemas ({schemas}); {remedy}",
    "run.query_refused": "the source query is refused: {message}",
    "run.query_refused_at": "the source query is refused at line {line}, column {column}: {message}",
    "run.reading_failed": "reading the source failed: {message}",
    "run.runner_silent": "the runner fell silent; the next one continues from the checkpoint",
    "run.runner_stopped": "the runner was stopped",
    "run.other_database": (
        "a worker of this load reaches another database than the runner, which is no replica of the runner's: correct"
        " the connection there"
    ),
    "run.snapshot_elsewhere": (
        "the workers of this load reach another server of the source than the runner, where its snapshot is not known:"
        " let their connection lead to the same server, or, for a full load that may be read in several snapshots,"
        " leave out options.consistency and options.history"
    ),
    "run.snapshot_gone": "the snapshot that the load is read in is gone: {message}",
    "run.source_is_empty": "the source has no rows, but {target} does; if it shall be emptied, set options.allow_empty",
    "run.source_silent": "the source has said nothing for {seconds:.0f} s",
    "run.target_has_rls": (
        "target {schema}.{table} has row-level security that applies to the application's own login, so a load could"
        " not see all of its rows: let that login own it, with NO FORCE ROW LEVEL SECURITY, or use another table"
    ),
    "run.target_is_no_table": "target {schema}.{table} is {kind}, not a table",
    "run.target_lacks_columns": (
        "{schema}.{table} lacks {columns}; add the columns, drop them from the query, or set options.on_schema_change"
        " to 'add_columns'"
    ),
    "run.target_replaced": "{target} was emptied or made anew by hand during the run",
    "run.the_query": "the source query",
    "run.too_costly": "{what} costs {cost:.0f} by EXPLAIN, more than options.max_cost {most:.0f}",
    "run.too_many_letters": (
        "{letters} document(s) were refused, more than options.max_dead_letters ({budget}); see `vitrina dead-letters"
        " list`, mend the mapping or the query, and run again"
    ),
    "run.spark_hash_key": (
        "an executor of the Spark cluster has another VITRINA_HASH_KEY than the runner, or none: hashes would differ"
    ),
    "run.spark_job_failed": "the job on the Spark cluster failed: {reason}",
    "run.spark_no_answer": "the Spark cluster has ended the job without an answer for a range of the key",
    "run.spark_package_differs": (
        "executors of the Spark cluster have {package} {there}, the runner has {here}: install the same in the image of"
        " the cluster"
    ),
    "run.spark_package_missing": (
        "executors of the Spark cluster have no {package}, the runner has {here}: install it in the cluster's image"
    ),
    "run.spark_python_differs": (
        "executors of the Spark cluster have another Python than the runner, which has {here}: install the same in the"
        " image of the cluster"
    ),
    "run.spark_refused_login": "the Spark Connect server refuses the token in the connection's URL",
    "run.spark_restarted": "the Spark Connect server has forgotten the job: it was started again, or ended the session",
    "run.spark_unreachable": "the Spark Connect server does not answer: see whether it runs, and check the URL",
    "run.worker_lost": (
        "a process that loaded a range of the key ended without an answer ({how}); perhaps the system ran out of memory"
    ),
    "run.worker_silent": "a process that loads a range of the key has said nothing for {seconds:.0f} s",
    "run.would_cascade": (
        "{rows} row(s) left the source, but deleting them from {target} would cascade through {tables}; set"
        " options.allow_cascade if that is wanted"
    ),
    "run.partition_key": (
        "options.table.partition_by names {column!r}, which is no part of the key of {target} ({key}): rows of one key"
        " would be in several partitions"
    ),
    "run.no_partition": (
        "the partition {partition} cannot be made: {message}; remove what is in its way, or make a partition by hand"
        " that takes these rows"
    ),
    "run.partition_type": (
        "options.table.partition_by.range names {column!r}, which is {type}: name a date or a timestamp, by which"
        " {target} can be cut into spans of time"
    ),
    "run.partition_value": (
        "{column} of a row is {value}, for which {target} has no partition: one is made for the years 1 to 9998; filter"
        " such rows out in the query, or make a default partition by hand"
    ),
    "run.partition_name": "the partition {name} has a name longer than 63 bytes: choose a shorter target",
    "run.soft_column_given": (
        "the result has a column {column!r}, which options.deletes.soft of {target} needs itself: give it another name"
        " with AS, or name another column there"
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
        "{view}, the view of options.history.current_view, has a name longer than 63 bytes: leave the option out"
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
        "If the rows of {tables} shall go as well, set options.allow_cascade, then run again; otherwise drop ON DELETE"
        " CASCADE there."
    ),
    "advice.allow_empty": (
        "If the source is empty on purpose, set options.allow_empty, run once and take it back; otherwise look why the"
        " query gives no rows."
    ),
    "advice.allow_shrink": (
        "If so many rows are really gone, set options.allow_shrink, run once and take it back; otherwise look why the"
        " query gives fewer rows."
    ),
    "advice.bad_check": "Correct the check in the definition, then run again.",
    "advice.bad_key": "Make target_key unique and not NULL in the source, or choose other columns, then run again.",
    "advice.cannot_connect": "Check that the database or server is up and that its address and login are right.",
    "advice.cast_columns": (
        "Cast these columns in the query to the types of {schema}.{table}, or change the table, then run again."
    ),
    "advice.cheaper": "Narrow the query with WHERE or add an index for it, or raise options.max_cost, then run again.",
    "advice.check_failed": (
        "Look at the rows that break the check: correct the source, or accept the check by its name (--accept) if the"
        " rows are right."
    ),
    "advice.choose_cursor": (
        "Set incremental_key to a timestamp or whole-number column, or cast {column} in the query, then run again."
    ),
    "advice.config": "The operator corrects the setting that the message names, then run again.",
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
        "Set options.cursor_timezone to the zone in which {column} is written, or leave rows from the future out with"
        " WHERE, then run again."
    ),
    "advice.disconnected": "Nothing, if the server is back: another run continues from the checkpoint.",
    "advice.fatal": (
        "Open the run's log: the lines before the error show which step of the run met it. Correct the definition, the"
        " query or the target there, then run again."
    ),
    "advice.filter_null_keys": (
        "Add WHERE {column} IS NOT NULL to the query, or choose another target_key, then run again."
    ),
    "advice.forbidden_target": "Choose an allowed target (GET /targets), or ask the operator to allow this one.",
    "advice.full_has_no_range": "Take :{parameter} out of the query, or set mode to incremental, then run again.",
    "advice.give_column": "Add {column} to the query's SELECT, or correct {field}, then run again.",
    "advice.give_key": (
        "Add {column} to the query's SELECT, or set target_key to columns that it gives, then run again."
    ),
    "advice.grant_create": (
        "Let an administrator run GRANT CREATE ON SCHEMA {schema} TO {login}, or create the table by hand, then run"
        " again."
    ),
    "advice.group_by_key": (
        "Make the query give one row for each ({columns}): GROUP BY or DISTINCT ON, or add the column that tells them"
        " apart to target_key, then run again."
    ),
    "advice.internal": (
        "This is a fault of Vitrina's own: run it again; if it fails in the same way, report it with the last lines of"
        " the run's log."
    ),
    "advice.invalid": "Open the definition, correct the field that the message names, save it, then run again.",
    "advice.invalid_query": "Correct source_query: the message says what is not allowed and where, then run again.",
    "advice.lease_lost": (
        "Nothing: another runner continues from the checkpoint. If it repeats, look at the runners' logs."
    ),
    "advice.let_through": (
        "Let the application's login own the target, or take its row-level security off, then run again."
    ),
    "advice.look_at_letters": (
        "Look at the dead letters, grouped by error: correct the query or the index's mapping for each group, then run"
        " again; options.max_dead_letters says how many a run may leave behind."
    ),
    "advice.make_unique": (
        "ALTER TABLE {schema}.{table} ADD UNIQUE ({columns}), or set target_key to the columns of a constraint that"
        " exists, then run again."
    ),
    "advice.missing_columns": (
        "Give {columns} in the query again, drop the column from the table, or set options.on_missing_columns to keep"
        " or null, then run again."
    ),
    "advice.name_columns": "Give each column of the query a name of its own with AS, then run again.",
    "advice.not_carried": (
        "Cast the column that the message names to text in the query, or leave it out of the query, then run again."
    ),
    "advice.own_table": "Choose a target that is a table, or rename what stands there, then run again.",
    "advice.record": "Correct or remove the rejected rows (GET /dead-letters), then run again.",
    "advice.reset_checkpoint": (
        "Reset the checkpoint to a value of {column} (More, Reset the checkpoint), then run again."
    ),
    "advice.runner_stopped": "Nothing: the next runner continues from the checkpoint.",
    "advice.set_key": "Edit the pipeline and name in target_key the columns that identify a row, then run again.",
    "advice.shrink_refused": (
        "If so many rows are really gone, run once with options.allow_shrink (or allow_empty) set."
    ),
    "advice.source_query_failed": "Correct source_query (a validation tries it against the source), then run again.",
    "advice.step_failed": (
        "Preview the pipeline: it shows the rows before and after the steps. Correct the step or its params, or let it"
        " set such rows aside (params.on_error: dead_letter), then run again."
    ),
    "advice.target_mismatch": (
        "Compare the query's columns with the target's (Preview shows the one, the message the other), change the query"
        " or the table, then run again; options.on_schema_change: add_columns lets a target gain columns by itself."
    ),
    "advice.target_taken": "Nothing: it runs as soon as the other pipeline has finished writing to this target.",
    "advice.test_connection": (
        "Test the connection {connection} on the page Connections: it says what a runner finds there. Run again when it"
        " can be used."
    ),
    "advice.transient": "Run it again: it continues from the checkpoint.",
    "attention.claim": (
        "no runner can take it up, because its row in etl.etl_pipelines cannot be handled: {kind}: {message}; correct"
        " the row, then run it"
    ),
    "attention.recovery": (
        "no runner can take it over from the one that fell silent, because its row in etl.etl_pipelines cannot be"
        " handled: {message}; correct the row"
    ),
    "attention.schedule": "the schedule is not followed: {reason}",
}
