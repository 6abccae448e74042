"""How a pipeline is run and why, what to be careful about, and what a comparison found."""

SENTENCES = {
    "plan.arrow": "arrow: {because}",
    "plan.arrow_checks": "arrow: changed rows are staged, so that the checks can examine them",
    "plan.arrow_asked": "arrow: requested by options.route",
    "plan.arrow_steps": "arrow: Python steps process the rows",
    "plan.checkpoint_elsewhere": "the checkpoint belongs to {target} in another database",
    "plan.checks_stop": (
        "the checks {names} apply to all rows: after a pass or a batch of changes they examine the target, when rows"
        " are visible already; a check that fails then stops the pipeline"
    ),
    "plan.checks_warn": (
        "the checks {names} apply to all rows: after a pass or a batch of changes they examine the target, and only"
        " warn"
    ),
    "plan.chunks": "about {rows} rows: chunks of {chunk} rows, each with a checkpoint, under one snapshot",
    "plan.copy_asked": "copy: requested by options.route",
    "plan.copy_between": "copy: source and target are in different databases, and no step processes the rows",
    "plan.data_compared": (
        "counted by comparing the source with {target}, as reconcile does: a full load writes every row there, and"
        " reports that number"
    ),
    "plan.data_incremental": (
        "mode incremental: the counts are for a run that reads everything (`vitrina state NAME --reset`); the next run"
        " reads only what is new, and rows that the query no longer returns stay"
    ),
    "plan.data_load_kept": (
        "there is an unpublished load: unless the definition changes, the next run resumes it, and the rows that it has"
        " read are from that time, not from this count"
    ),
    "plan.data_no_columns": "{source} returns no rows at present, so its columns and rows are unknown",
    "plan.data_only_new": (
        "in mode incremental, {source} returns only what is new since its own checkpoint, so the plan covers only what"
        " depends on the pipeline"
    ),
    "plan.data_not_told": (
        "the rows of {target} cannot be compared, so the plan covers only columns and what depends on them: {because}"
    ),
    "plan.data_rules_untried": (
        "{target} has rules that are tested only by a write; the run fails if a row breaks one: {rules}"
    ),
    "plan.definition_changed": "the definition changed",
    "plan.emptied": "the mart was emptied or recreated by hand: the checkpoint is reset and it is loaded again",
    "plan.engine_slower": (
        "{engine} would take longer to load {rows} rows: the runner needs about {seconds} s on its {processors}"
        " processor(s) (options.parallel: auto), a job on a cluster about {start} s before its first row"
    ),
    "plan.files_source": "the files of connection {connection}",
    "plan.first_pass": "the mart is empty: the first pass loads it and publishes all rows at once",
    "plan.first_pass_goes_on": "the first pass was interrupted: it resumes",
    "plan.generation_gone": "the unfinished generation no longer exists",
    "plan.index_replaced": "{target} was deleted or replaced by hand",
    "plan.live_cost": (
        "a changed row of {table} affects about {keys} key(s), according to the source's statistics; an index finds"
        " them"
    ),
    "plan.live_cost_scans": (
        "a changed row of {table} affects about {keys} key(s), according to the source's statistics; no index finds"
        " them, so each batch reads all of {scanned}: add an index on the join column"
    ),
    "plan.live_every_key": "a changed row of {table} may affect every key, so the target is loaded again",
    "plan.live_table": "follows {table}: a changed row leads to {leads_to}",
    "plan.live_table_full": (
        "follows {table}: a changed row leads to {leads_to}; the table's replica identity must hold {columns}"
    ),
    "plan.load_old": "the unfinished load is {age} old",
    "plan.no_ranges": "the load is not split into ranges of the key: {because}",
    "plan.one_batch_quick": (
        "one batch, because about {rows} rows load quickly; a pause cancels it, and a resume starts it again"
    ),
    "plan.one_batch_sorted": (
        "one batch, because the query sorts or aggregates and cannot be read in pages; a pause cancels it, and a resume"
        " starts it again"
    ),
    "plan.one_batch_unordered": (
        "one batch, because the key has a type of an extension, and no read can resume in its order; a pause"
        " cancels it, and resuming starts it again"
    ),
    "plan.one_snapshot": "options.consistency requires one snapshot",
    "plan.other_cursor": "the cursor, its source or the target has changed since the last checkpoint",
    "plan.other_database": (
        "the source connection {connection} leads to a different database than at the last checkpoint"
    ),
    "plan.other_source": "the source or the target has changed since the last checkpoint",
    "plan.pages": "pages of {rows} rows",
    "plan.pushdown": "pushdown: source and target are in one database, and no step processes the rows",
    "plan.python_source": "the Python source {name}",
    "plan.ranges": (
        "about {ranges} ranges of the key, loaded in parallel by {workers} processes under one snapshot; each range is"
        " committed separately"
    ),
    "plan.ranges_costly": (
        "reading all ranges would cost {times} times as much as one read: an index on ({columns}) is missing, or the"
        " rows are scattered over the table"
    ),
    "plan.ranges_engine": (
        "about {ranges} ranges of the key, loaded by executors of {engine} under one snapshot; each range is committed"
        " separately"
    ),
    "plan.ranges_few": (
        "about {rows} rows load quickly (several processes pay off from {least} rows; options.checkpoint_rows lowers"
        " that)"
    ),
    "plan.ranges_first_pass": "later incremental runs and backfills use one process",
    "plan.ranges_live": "mode live loads in one stream, from a known position in the log",
    "plan.ranges_load_alone": "`vitrina reconcile` uses up to {workers} sessions on each side",
    "plan.ranges_no_key": "the source returns no column of the key",
    "plan.ranges_no_room": (
        "`auto` has one processor, or VITRINA_CONN_<NAME>_MAX_CONNECTIONS leaves no room for two processes (`auto` is"
        " not counted against that limit)"
    ),
    "plan.ranges_passes": "a pass or a backfill is merged batch by batch, by one process",
    "plan.ranges_pushdown": "Postgres moves the rows in one statement, which is faster",
    "plan.ranges_quick": "one stream loads about {rows} rows within a minute, without tags and without a sort",
    "plan.ranges_sorted": "the query sorts, groups or limits rows, which every range would repeat",
    "plan.ranges_source": "{source} cannot be read in ranges",
    "plan.ranges_target": "{target} cannot be written by several processes at once",
    "plan.ranges_unasked": "the columns of the source are not known yet",
    "plan.ranges_unordered": "the key has a type of an extension, and its order cannot be split into ranges",
    "plan.ranges_volatile": "{functions} could return a different result for each range",
    "plan.read_only_first": "runs read-only first, because it calls {functions}",
    "plan.recreated": "{target} was emptied or recreated by hand",
    "plan.restored": "{target} was emptied, replaced or restored by hand",
    "plan.search_index": "the target is a search index",
    "plan.several_versions": "the source has several versions of a row, which are merged in cursor order",
    "plan.rows_stay": "options.deletes: none: rows that left the source are not deleted",
    "plan.shared_target": "options.shared_target: rows that left the source are not deleted",
    "plan.source": "rows come from {source}",
    "plan.source_at_once": "loaded, then published at once",
    "plan.source_batches": "each batch is merged together with the source's checkpoint",
    "plan.source_sets_none": "the source sets no checkpoint",
    "plan.stage_gone": "the stage no longer exists",
    "plan.stage_lost": "the database lost the stage in a crash",
    "plan.starts_over": "starts from the beginning: {because}",
    "plan.stream": "one streamed query, in order, with a checkpoint per batch",
    "plan.stream_without_key": (
        "one streamed query that starts over when interrupted, because Python steps compute the key"
    ),
    "plan.through_runner": "the target receives rows through the runner",
    "warning.clock_behind": (
        "{said}, although {changes} row(s) were inserted or updated there since the last pass: {remedy}"
    ),
    "warning.clock_future": "{said}, which is in the future: {remedy}",
    "warning.clock_newest": "options.cursor_clock is 'database', but the newest {column} in {table} is {newest}",
    "warning.clock_remedy": (
        "if anything other than the database's clock writes it, remove options.cursor_clock; otherwise rows are lost"
    ),
    "warning.columns_cleared": "the source no longer returns {columns} of {target}: all rows get NULL there",
    "warning.columns_kept": "the source no longer returns {columns} of {target}: rows keep the values that they have",
    "warning.cursor_may_be_null": (
        "incremental_key {column} may be NULL in {table}, and a row without a value is never read: fill in the values"
        " and ALTER TABLE {table} ALTER {column} SET NOT NULL, or set options.null_cursor to 'read'"
    ),
    "warning.cursor_went_back": (
        "the highest value of incremental_key {column} is {newest}, below the checkpoint {checkpoint}: if its numbering"
        " restarted, the rows up to the checkpoint were not read; read them with `vitrina state {name} --reset`"
    ),
    "warning.default_is_early": (
        "the default of {column} in {table} is {default}, which may be earlier than the transaction that writes it"
    ),
    "warning.default_only": (
        "incremental_key {column} is set by its default for new rows, and no trigger of {table} updates it later,"
        " although {changes} row(s) were updated: an update that does not set it is never delivered. Add a BEFORE"
        " UPDATE trigger, or compare regularly (options.reconcile)"
    ),
    "warning.engine_unasked": (
        "the versions of {engine} were not compared with the runner's: {because}. Correct that and request the plan"
        " again, or set options.engine = local"
    ),
    "warning.foreign_table": (
        "{table} is a foreign table, and open transactions on its server are not visible from here"
    ),
    "warning.history_unique_by": (
        "{target} is not unique by {wanted}, as options.history.unique_by requests: runs write it as its indexes allow;"
        " convert it (the guide to histories has the statements), or set the option to {found}"
    ),
    "warning.materialized_view": (
        "{table} is a materialized view, whose rows appear when it is refreshed, with timestamps from before the"
        " refresh"
    ),
    "warning.no_index": (
        "{table} has no index that starts with {order}, so each pass reads the whole table: CREATE INDEX CONCURRENTLY"
        " ON {table} ({columns})"
    ),
    "warning.no_sequence": "{column} is not drawn from a sequence, so a lower value may be written after a higher one",
    "warning.nobody_works": "no runner is alive, so the query was not tried and the Python steps were not looked up",
    "warning.not_exact": "the guarantee is not exact, although options.cursor_clock says so: {because}",
    "warning.null_cursor": (
        "{rows} row(s) have no value in incremental_key {column} and are not read: fill in the values, or set"
        " options.null_cursor to 'read', which reads such rows on every pass"
    ),
    "warning.other_clock": (
        "rows whose cursor value was not set by this database's clock may arrive late: set options.lookback_seconds, or"
        " set options.cursor_clock to 'database' if that clock sets every value"
    ),
    "warning.replicated": "{table} is filled by logical replication, with timestamps that are older than the rows here",
    "warning.sequence_cache": (
        "the sequence {sequence} has CACHE {cache}, so sessions reserve numbers and write them after higher ones: ALTER"
        " SEQUENCE {sequence} CACHE 1"
    ),
    "warning.sequence_turns": "the sequence {sequence} counts down, or cycles",
    "warning.table_drift": "{target} lacks what options.table requests; to add it: {statement}",
    "warning.table_not_in_ranges": (
        "{target} is not partitioned by ranges of {column}, as options.table requests; an existing table is not created"
        " again: load into a new target, or remove the option"
    ),
    "warning.table_not_partitioned": (
        "{target} is not partitioned by the hash of {column}, as options.table requests; an existing table is not"
        " created again: load into a new target, or remove the option"
    ),
    "warning.standby": (
        "the source is a standby: rows of a transaction that is open on its primary for longer than"
        " options.lookback_seconds ({seconds:g}) are missed"
    ),
    "warning.zone_assumed": (
        "incremental_key {column} has no time zone; {zone} is assumed, because the server uses it: set"
        " options.cursor_timezone if that is wrong"
    ),
    "check.changed_share": "{changed} changes in a target of {rows} rows; at most {most} are expected",
    "check.expected": "expected: from {low} to {high}",
    "check.expected_any": "there are no earlier runs to compare with",
    "check.expected_least": "expected: {low} or more",
    "check.expected_most": "expected: {high} or fewer",
    "check.first_load": "the target was empty: there is nothing to compare with",
    "check.freshness": "the latest {column} is {age} seconds old; the limit is {most}",
    "check.named": "the SQL of the check {check}",
    "check.no_parameters": "it does not support :since or :until; remove them",
    "check.no_value": "no row has a value in {column}",
    "check.others": "; {names} failed too",
    "check.rejected": "the row violates the check {check}",
    "check.row_count": "{rows} rows; {expected}",
    "check.rows": "{rows} row(s) violate it",
    "check.unique": "{values} value(s) of {columns} occur more than once",
    "check.warned": "check {check}: {found}",
    "check.ends_differ": "the {word} {column} is {source} in the source, {mart} in the mart",
    "check.cut_by_server": "the server itself counts with {workers} parallel workers",
    "check.cut_few": (
        "about {rows} rows are compared quickly (several sessions pay off from {least} rows;"
        " options.checkpoint_rows lowers that)"
    ),
    "check.cut_limited": "{variable} limits the sessions there, and those of comparisons are not counted",
    "check.rows_extra": "the mart has {mart} rows, but the source has only {source}",
    "check.rows_missing": "the mart has {mart} rows, but the source has {source} that must be in it",
}
