"""How changes of source tables lead to keys of a live pipeline, and why a query cannot be followed."""

SENTENCES = {
    "derive.affects_columns": (
        "options.live.affects for {table} must return {columns} in this order, not {count} columns"
    ),
    "derive.affects_failed": "options.live.affects for {table} cannot run: {message}",
    "derive.affects_parameter": (
        "options.live.affects for {table} must use columns of that table as parameters, such as :id;"
        " found {parameter!r}"
    ),
    "derive.affects_unknown": "options.live.affects names {table}, which the query does not read",
    "derive.as_stated": "as stated in options.live.affects",
    "derive.by_way_of": "{columns}, through {tables}",
    "derive.every_key": "every key",
    "derive.every_key_of": "a change of {table} may affect every key",
    "derive.float_sum": (
        "{function}() over floats: the last digits may differ between a read of single keys and a full load"
    ),
    "derive.no_old_values": (
        "the log does not contain the old values of {columns} of {table}, which are needed to find the affected keys;"
        " run on the source: {statements}"
    ),
    "derive.no_parser": "following a query needs PostgreSQL's parser: install vitrina[live]",
    "derive.no_table": "the table {name} does not exist",
    "derive.no_tables": "the query reads no table, so there is nothing to follow",
    "derive.not_keywise": (
        "the query cannot be run cheaply for single keys: {why}; add an index, or load it on a schedule instead"
    ),
    "derive.not_parsed": "PostgreSQL's parser rejects the query: {message}",
    "derive.not_readable": (
        "following the query needs SELECT on {table}, which a view reads with the privileges of its owner: grant it to"
        " the reader"
    ),
    "derive.nothing_derived": (
        "changes of {tables} cannot be traced to keys of the query: state the keys in options.live.affects, or load the"
        " query on a schedule"
    ),
    "derive.refused": "a query with {what} cannot be followed: load it on a schedule instead",
    "derive.refused_relation": "{name} is {kind}, whose changes are not in the log, so it cannot be followed",
    "derive.too_many_tables": (
        "the query reads more than {most} tables; views and WITH queries count each time they are used"
    ),
    "derive.truncated": "{table} was truncated",
    "derive.unordered": (
        "{function}() without ORDER BY: the order may differ between a read of single keys and a full load"
    ),
    "derive.value_missing": "the log lacks a value of {table} that is needed to find the affected keys",
}
