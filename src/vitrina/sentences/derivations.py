"""How changes of source tables lead to keys of a live pipeline, and why a query cannot be followed."""

SENTENCES = {
    "derive.affects_columns": "options.live.affects for {table} must give {columns} in this order, not {count} columns",
    "derive.affects_failed": "options.live.affects for {table} cannot run: {message}",
    "derive.affects_parameter": (
        "options.live.affects for {table} must use columns of that table as parameters, such as :id;"
        " found {parameter!r}"
    ),
    "derive.affects_unknown": "options.live.affects names {table}, which the query does not read",
    "derive.as_stated": "as options.live.affects says",
    "derive.by_way_of": "{columns}, by way of {tables}",
    "derive.every_key": "every key",
    "derive.every_key_of": "a change of {table} may concern every key",
    "derive.float_sum": (
        "{function}() over floats: asked for single keys, the last digits may differ from those of a full load"
    ),
    "derive.no_old_values": (
        "the log does not carry old values of {columns} of {table}, which lead to keys; run on the source: {statements}"
    ),
    "derive.no_parser": "following a query needs PostgreSQL's parser: install vitrina[live]",
    "derive.no_table": "the table {name} does not exist",
    "derive.no_tables": "a query that reads no table has nothing to follow",
    "derive.not_keywise": (
        "the query cannot be asked for single keys cheaply: {why}; add an index, or load it on a schedule instead"
    ),
    "derive.not_parsed": "PostgreSQL's parser does not read the query: {message}",
    "derive.not_readable": (
        "following the query needs SELECT on {table}, which a view reads with the rights of its owner: grant it to the"
        " reader"
    ),
    "derive.nothing_derived": (
        "no change of {tables} leads to keys of the query: state it in options.live.affects, or load it on a schedule"
    ),
    "derive.refused": "a query with {what} cannot be followed: load it on a schedule instead",
    "derive.refused_relation": "{name} is {kind}, whose changes are not in the log: it cannot be followed",
    "derive.too_many_tables": "the query reads more than {most} tables, views and WITH queries counted each time",
    "derive.truncated": "{table} was truncated",
    "derive.unordered": "{function}() without ORDER BY: asked for single keys, the order may differ from a full load's",
    "derive.value_missing": "the log lacks a value of {table} that leads to keys",
}
