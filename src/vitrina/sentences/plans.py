"""How a pipeline is run and why, what to be careful about, and what a comparison found."""

SENTENCES = {
    "plan.arrow": "arrow: {because}",
    "plan.arrow_checks": "arrow: rows that change are staged, so that the checks judge them",
    "plan.arrow_asked": "arrow: options.route asks for it",
    "plan.arrow_steps": "arrow: Python steps look at the rows",
    "plan.checkpoint_elsewhere": "the checkpoint is that of {target} in another database",
    "plan.checks_stop": (
        "the checks {names} are about all rows: while passes or changes are brought, they look at the target"
        " afterwards, when rows are visible already; one that fails then stops the pipeline"
    ),
    "plan.checks_warn": (
        "the checks {names} are about all rows: while passes or changes are brought, they look at the target afterwards"
        " and only warn"
    ),
    "plan.chunks": "about {rows} rows: chunks of {chunk} with a checkpoint each, under one snapshot",
    "plan.copy_asked": "copy: options.route asks for it",
    "plan.copy_between": "copy: source and target are in different databases, and no step looks at the rows",
    "plan.data_compared": (
        "counted by comparing the source with {target}, as reconcile does: a full load writes all rows there, and"
        " reports those"
    ),
    "plan.data_incremental": (
        "mode incremental: the counts are those of a run that reads everything (`vitrina state NAME --reset`); the next"
        " run reads what is new, and rows that the query no longer gives stay"
    ),
    "plan.data_load_kept": (
        "a load was begun and not published: unless the definition changes, the next run goes on with it, and rows that"
        " it has read are as of then, not as counted here"
    ),
    "plan.data_no_columns": "{source} gives no row just now, so its columns and rows cannot be told",
    "plan.data_only_new": (
        "{source} gives what is new since its own checkpoint in mode incremental, and cannot be asked for everything:"
        " only what depends on the pipeline is told"
    ),
    "plan.data_not_told": (
        "rows of {target} cannot be compared, so only columns and what depends on them are told: {because}"
    ),
    "plan.data_rules_untried": (
        "rules of {target} that only a write tries, and that would make the run fail where a row breaks one: {rules}"
    ),
    "plan.definition_changed": "the definition changed",
    "plan.emptied": "the mart was emptied or recreated by hand: the checkpoint is reset and it is loaded again",
    "plan.engine_slower": (
        "a load of {rows} rows by {engine} would take longer: one stream of the runner needs about {seconds} s for"
        " them, a job on a cluster about {start} s before its first row"
    ),
    "plan.files_source": "the files of connection {connection}",
    "plan.first_pass": "the mart is empty: the first pass loads it at once",
    "plan.first_pass_goes_on": "the first pass was interrupted: it goes on",
    "plan.generation_gone": "the unfinished generation is gone",
    "plan.index_replaced": "{target} was deleted or replaced by hand",
    "plan.live_cost": (
        "a changed row of {table} concerns about {keys} key(s), by the source's statistics; they are found by index"
    ),
    "plan.live_cost_scans": (
        "a changed row of {table} concerns about {keys} key(s), by the source's statistics; no index leads to them, so"
        " each batch reads all of {scanned}: add an index on the column that joins them"
    ),
    "plan.live_every_key": "a changed row of {table} may concern every key: the target is loaded again",
    "plan.live_table": "follows {table}: a changed row leads to {leads_to}",
    "plan.live_table_full": (
        "follows {table}: a changed row leads to {leads_to}; the table's replica identity must hold {columns}"
    ),
    "plan.load_old": "the unfinished load is {age} old",
    "plan.no_ranges": "the load is not cut into ranges of the key: {because}",
    "plan.one_batch_quick": (
        "one batch, because about {rows} rows are quickly done; a pause cancels it, and resuming begins it again"
    ),
    "plan.one_batch_sorted": (
        "one batch, because it sorts or aggregates and cannot be read in pages; a pause cancels it, and resuming begins"
        " it again"
    ),
    "plan.one_batch_unordered": (
        "one batch, because the key has a type of an extension, in whose order no read can resume; a pause cancels it,"
        " and resuming begins it again"
    ),
    "plan.one_snapshot": "options.consistency asks for one snapshot",
    "plan.other_cursor": "the cursor, its source or the target is another one than at the last checkpoint",
    "plan.other_database": "the source connection {connection} leads to another database than at the last checkpoint",
    "plan.other_source": "the source or the target is another one than at the last checkpoint",
    "plan.pages": "pages of {rows} rows",
    "plan.pushdown": "pushdown: source and target are in one database and no step looks at the rows",
    "plan.python_source": "the Python source {name}",
    "plan.ranges": (
        "about {ranges} ranges of the key, brought side by side by {workers} processes under one snapshot;"
        " each counts on its own"
    ),
    "plan.ranges_costly": (
        "all ranges together would cost {times} times one read, so an index on ({columns}) is missing, or the"
        " rows are far apart in the table"
    ),
    "plan.ranges_engine": (
        "about {ranges} ranges of the key, brought by executors of {engine} under one snapshot; each counts on its own"
    ),
    "plan.ranges_few": (
        "about {rows} rows are quickly done (from {least} rows on, processes are worth starting;"
        " options.checkpoint_rows lowers that)"
    ),
    "plan.ranges_first_pass": "one process reads and writes in later passes, in backfills and in `vitrina reconcile`",
    "plan.ranges_live": "mode live loads in one stream, at a known place of the log",
    "plan.ranges_load_alone": "one process reads and writes in `vitrina reconcile`",
    "plan.ranges_no_key": "the source gives no column of the key",
    "plan.ranges_no_room": (
        "there is one processor for `auto`, or VITRINA_CONN_<NAME>_MAX_CONNECTIONS leaves no room for two processes"
        " (it cannot count `auto`)"
    ),
    "plan.ranges_passes": "a pass, or a backfill of a range, is merged batch by batch, by one process",
    "plan.ranges_pushdown": "Postgres moves the rows by itself in one statement, which is quicker",
    "plan.ranges_quick": "one stream brings about {rows} rows within a minute, without tags and without a sort",
    "plan.ranges_sorted": "the query sorts, groups or limits, which every range would do again",
    "plan.ranges_source": "{source} is not read in ranges",
    "plan.ranges_target": "{target} is not written by several processes at once",
    "plan.ranges_unasked": "the columns of the source are not known yet",
    "plan.ranges_unordered": "the key has a type of an extension, in whose order no range can be cut",
    "plan.ranges_volatile": "each range could get another answer from {functions}",
    "plan.read_only_first": "runs read-only first, because it calls {functions}",
    "plan.recreated": "{target} was emptied or recreated by hand",
    "plan.restored": "{target} was emptied, replaced or restored by hand",
    "plan.search_index": "the target is a search index",
    "plan.several_versions": "the source has several versions of a row, which are merged in the order of the cursor",
    "plan.rows_stay": "options.deletes: none: rows that left the source are not deleted",
    "plan.shared_target": "options.shared_target: rows that left the source are not deleted",
    "plan.source": "rows come from {source}",
    "plan.source_at_once": "loaded, then published at once",
    "plan.source_batches": "each batch is merged together with the source's checkpoint",
    "plan.source_sets_none": "the source sets no checkpoint",
    "plan.stage_gone": "the stage is gone",
    "plan.stage_lost": "the database lost the stage in a crash",
    "plan.starts_over": "starts from the beginning: {because}",
    "plan.stream": "one streamed query, in order, with a checkpoint per batch",
    "plan.stream_without_key": (
        "one streamed query that starts over when interrupted, because Python steps make the key"
    ),
    "plan.through_runner": "the target takes rows through the runner",
    "warning.clock_behind": (
        "{said}, although {changes} row(s) were inserted or changed there since the last pass: {remedy}"
    ),
    "warning.clock_future": "{said}, which is in the future: {remedy}",
    "warning.clock_newest": "options.cursor_clock is 'database', but the newest {column} in {table} is {newest}",
    "warning.clock_remedy": (
        "if something else than the database's clock writes it, leave options.cursor_clock out: rows are lost else"
    ),
    "warning.columns_cleared": "{columns} of {target} is no longer given: it is set to NULL in all rows",
    "warning.columns_kept": "{columns} of {target} is no longer given: rows keep the values that they have",
    "warning.cursor_may_be_null": (
        "incremental_key {column} may be NULL in {table}, and a row without it is never read: fill it in and ALTER"
        " TABLE {table} ALTER {column} SET NOT NULL, or set options.null_cursor to 'read'"
    ),
    "warning.cursor_went_back": (
        "the highest value of incremental_key {column} is {newest}, below the checkpoint {checkpoint}: if its numbers"
        " began again, the rows up to there were not read; read them with `vitrina state {name} --reset`"
    ),
    "warning.default_is_early": (
        "the default of {column} in {table} is {default}, which may be earlier than the transaction that writes it"
    ),
    "warning.default_only": (
        "incremental_key {column} is set by its default for new rows, and no trigger of {table} moves it later, though"
        " {changes} row(s) were changed: a change that leaves it alone is never delivered. Add a BEFORE UPDATE trigger,"
        " or compare regularly (options.reconcile)"
    ),
    "warning.foreign_table": (
        "{table} is a foreign table, and which transactions are open on its server is not seen from here"
    ),
    "warning.materialized_view": (
        "{table} is a materialized view, whose rows appear when it is refreshed, with stamps from before"
    ),
    "warning.no_index": (
        "{table} has no index that starts with {order}, so each pass reads the whole table: CREATE INDEX CONCURRENTLY"
        " ON {table} ({columns})"
    ),
    "warning.no_sequence": "{column} is not drawn from a sequence, so a lower value may be written after a higher one",
    "warning.nobody_works": "no runner is alive, so the query was not tried and the Python steps were not looked up",
    "warning.not_exact": "the guarantee is not exact, although options.cursor_clock says so: {because}",
    "warning.null_cursor": (
        "{rows} row(s) have no value in incremental_key {column} and are left out: fill it in, or set"
        " options.null_cursor to 'read', which reads them on every pass"
    ),
    "warning.other_clock": (
        "rows whose cursor value was not set by this database's clock may be late: set options.lookback_seconds, or"
        " options.cursor_clock to 'database' if it was"
    ),
    "warning.replicated": "{table} is filled by logical replication, with stamps that are older than the rows here",
    "warning.sequence_cache": (
        "the sequence {sequence} has CACHE {cache}, so sessions keep numbers and write them behind higher ones: ALTER"
        " SEQUENCE {sequence} CACHE 1"
    ),
    "warning.sequence_turns": "the sequence {sequence} counts down, or begins again at its end",
    "warning.table_drift": "{target} lacks what options.table asks for; to add it: {statement}",
    "warning.table_not_in_ranges": (
        "{target} is not partitioned by ranges of {column}, as options.table asks; a table that is there is not made"
        " again: load into a new target, or leave the option out"
    ),
    "warning.table_not_partitioned": (
        "{target} is not partitioned by the hash of {column}, as options.table asks; a table that is there is not made"
        " anew: load into a new target, or leave the option out"
    ),
    "warning.standby": (
        "the source is a standby: rows of a transaction that is open on its primary for longer than"
        " options.lookback_seconds ({seconds:g}) are missed"
    ),
    "warning.zone_assumed": (
        "incremental_key {column} has no time zone; {zone} is assumed, which is what the server says:"
        " options.cursor_timezone says otherwise"
    ),
    "check.changed_share": "{changed} changes in a target of {rows} rows, {most} of them are expected at most",
    "check.expected": "expected: from {low} to {high}",
    "check.expected_any": "there are no runs yet to compare with",
    "check.expected_least": "expected: {low} or more",
    "check.expected_most": "expected: {high} or fewer",
    "check.first_load": "the target was empty: there is nothing to compare with",
    "check.freshness": "the latest {column} is {age} seconds old, {most} is the limit",
    "check.named": "the SQL of the check {check}",
    "check.no_parameters": "it has no :since or :until; leave them out",
    "check.no_value": "no row has a {column}",
    "check.others": "; {names} failed, too",
    "check.rejected": "the row breaks the check {check}",
    "check.row_count": "{rows} rows; {expected}",
    "check.rows": "{rows} row(s) break it",
    "check.unique": "{values} value(s) of {columns} come more than once",
    "check.warned": "check {check}: {found}",
    "check.ends_differ": "the {word} {column} is {source} in the source, {mart} in the mart",
    "check.rows_extra": "the mart has {mart} rows, the source only {source}",
    "check.rows_missing": "the mart has {mart} rows, the source {source} that must be in it",
}
