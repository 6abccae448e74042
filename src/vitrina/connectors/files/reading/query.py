"""Check which files a query reads and whether it may: DuckDB parses the query, this module checks the parse tree.

Only what is known to be harmless is allowed. Anything else is refused, including what later DuckDB versions add.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vitrina.errors import SourceQueryFailed

Node = dict[str, Any]

_CSV = frozenset(
    "all_varchar allow_quoted_nulls auto_detect auto_type_candidates columns comment compression dateformat date_format"
    " decimal_separator delim delimiter sep dtypes types encoding escape filename force_not_null header"
    " hive_partitioning hive_types hive_types_autocast ignore_errors max_line_size maximum_line_size names column_names"
    " new_line normalize_names null nullstr null_padding parallel quote sample_size skip strict_mode thousands"
    " timestampformat timestamp_format union_by_name files_to_sniff".split()
)
_JSON = frozenset(
    "auto_detect columns compression convert_strings_to_integers dateformat date_format field_appearance_threshold"
    " filename format hive_partitioning hive_types hive_types_autocast ignore_errors map_inference_threshold"
    " maximum_depth maximum_object_size maximum_sample_files records sample_size timestampformat timestamp_format"
    " union_by_name".split()
)
_PARQUET = frozenset(
    "binary_as_string can_have_nan file_row_number filename hive_partitioning hive_types hive_types_autocast"
    " union_by_name".split()
)
# The functions that may read files, with their parameters, none of which names a place, a key or another file.
READERS: Mapping[str, frozenset[str]] = {
    "read_csv": _CSV,
    "read_csv_auto": _CSV,
    "read_json": _JSON,
    "read_json_auto": _JSON,
    "read_ndjson": _JSON,
    "read_ndjson_auto": _JSON,
    "read_parquet": _PARQUET,
    "parquet_scan": _PARQUET,
}
_ENDINGS = {
    ".csv": "read_csv",
    ".tsv": "read_csv",
    ".json": "read_json_auto",
    ".jsonl": "read_json_auto",
    ".ndjson": "read_json_auto",
    ".parquet": "read_parquet",
}
_COMPRESSED = (".gz", ".zst")
# With one of these parameters the author sets the column types; otherwise the first files determine them.
_TYPED = frozenset({"all_varchar", "auto_detect", "columns", "dtypes", "filename", "records", "types"})

# Defaults for CSV files, each with the parameters that override it. Without them DuckDB would guess, and skip lines at
# the beginning until the rest fits a guess.
_CSV_DEFAULTS: Mapping[str, frozenset[str]] = {
    "skip = 0": frozenset({"auto_detect", "skip"}),
    "header = true": frozenset({"auto_detect", "column_names", "columns", "header", "names"}),
    "quote = '\"', escape = '\"'": frozenset({"auto_detect", "escape", "quote"}),
}
_DELIMITERS = frozenset({"auto_detect", "columns", "delim", "delimiter", "sep"})

# The kinds of tables, by the parser's names.
_TABLES = frozenset({"BASE_TABLE", "SUBQUERY", "JOIN", "TABLE_FUNCTION", "EXPRESSION_LIST", "EMPTY"})
_QUERIES = frozenset({"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"})
_EXPRESSIONS = frozenset(
    "BETWEEN CASE CAST COLLATE COLUMN_REF COMPARISON CONJUNCTION CONSTANT DEFAULT FUNCTION LAMBDA LAMBDA_REF OPERATOR"
    " POSITIONAL_REFERENCE STAR SUBQUERY TYPE WINDOW".split()
)
# Allowed besides the file readers.
_TABLE_FUNCTIONS = frozenset({"unnest", "json_each", "json_tree"})

# These change from call to call. A load whose query calls one of them cannot be resumed in the middle of a file.
UNSTABLE = frozenset(
    "ago now today random uuid gen_random_uuid uuidv4 uuidv7 transaction_timestamp get_current_time"
    " get_current_timestamp current_date current_time current_timestamp current_localtime current_localtimestamp"
    " localtime localtimestamp".split()
)
# These reveal or change the state of the session or the program, or wait.
_FORBIDDEN = frozenset(
    "current_connection_id current_database current_query current_query_id current_schema current_schemas"
    " current_setting current_transaction_id current_catalog current_role current_user session_user user currval"
    " nextval setval getenv getvariable in_search_path json_deserialize_sql json_execute_serialized_sql"
    " json_serialize_plan json_serialize_sql parse_duckdb_log_message pg_sleep setseed sleep_ms stats txid_current"
    " vector_type version write_log get_block_size query query_table".split()
)
_FORBIDDEN_PREFIXES = ("__", "pg_", "has_", "inet_", "duckdb_", "pragma_", "read_", "col_desc", "obj_desc", "shobj_")
_MOST_FUNCTIONS = 5_000


@dataclass(frozen=True)
class Functions:
    """Hold the names of the functions that DuckDB has."""

    scalars: frozenset[str]
    others: frozenset[str]

    @property
    def names(self) -> frozenset[str]:
        return self.scalars | self.others


@dataclass
class FileScan:
    """Describe one place in the query where files are read."""

    patterns: tuple[str, ...]
    reader: str
    parameters: frozenset[str]
    # The table function in the tree; created here if the query has only a file name.
    node: Node = field(repr=False)

    @property
    def by_name(self) -> bool:
        return "union_by_name" in self.parameters

    @property
    def is_text(self) -> bool:
        return READERS[self.reader] is not _PARQUET

    @property
    def is_delimiter_guessed(self) -> bool:
        return READERS[self.reader] is _CSV and not self.parameters & _DELIMITERS

    @property
    def takes_types(self) -> bool:
        """Return whether the types of its columns are guessed from text and may be set instead."""
        return self.is_text and not self.parameters & _TYPED

    def call(self, files: Sequence[str], types: Mapping[str, str] | None = None) -> str:
        """Return the call that reads some files, without the author's parameters."""
        given = [f"[{', '.join(map(quoted, files))}]"]
        if types:
            pairs = ", ".join(f"{quoted(name)}: {quoted(kind)}" for name, kind in types.items())
            given.append(f"{'types' if READERS[self.reader] is _CSV else 'columns'} = {{{pairs}}}")
        if READERS[self.reader] is _CSV:
            given += [default for default, others in _CSV_DEFAULTS.items() if not self.parameters & others]
        return f"{self.reader}({', '.join(given)})"


@dataclass
class Query:
    """Hold a query that passed the check."""

    tree: Node
    readings: list[FileScan]
    # Each row comes from one row of a file, so files may be read one after the other.
    is_rowwise: bool
    # The same files give the same rows in the same order.
    is_stable: bool

    def mentions(self, column: str) -> bool:
        """Return whether the query reads a column, by its name or with *."""
        return any(
            node.get("class") == "STAR" or column.lower() in map(str.lower, node.get("column_names") or ())
            for node in _nodes(self.tree)
        )


def check(parsed: str, functions: Functions) -> Query:
    """Check the tree from DuckDB's parser. Raise `SourceQueryFailed` that says what is not allowed."""
    try:
        tree = json.loads(parsed)
        return _check(tree, functions)
    except RecursionError as exc:
        raise SourceQueryFailed("the query is nested too deeply") from exc


def _check(tree: Node, functions: Functions) -> Query:
    if tree.get("error"):
        raise SourceQueryFailed(_parse_error(tree))
    if len(tree["statements"]) != 1:
        raise SourceQueryFailed("a pipeline reads with one SELECT; this text holds several statements")
    [statement] = tree["statements"]
    if statement.get("named_param_map"):
        raise SourceQueryFailed("the query has a parameter ($1 or ?), for which there is no value")
    named = {name.lower() for node in _nodes(statement) for name in _cte_names(node)}
    called: set[str] = set()
    readings = []
    for node in _nodes(statement):
        _check_expression(node, functions, called)
        reading = _check_table(node, named)
        if reading:
            readings.append(reading)
    if not readings:
        raise SourceQueryFailed("the query reads no file: name one, such as SELECT * FROM 'sales/*.parquet'")
    scalars_alone = called <= functions.scalars - functions.others
    return Query(
        tree,
        readings,
        is_rowwise=scalars_alone and _is_rowwise(statement["node"]) and not readings[0].by_name,
        is_stable=not called & UNSTABLE and not any(_is_unstable_name(node) for node in _nodes(statement)),
    )


def _parse_error(tree: Node) -> str:
    said = str(tree.get("error_message", ""))
    if "Only SELECT" in said:
        return "a pipeline only reads: its query is one SELECT, and not a statement of another kind"
    return f"the query cannot be parsed: {said}"


def _nodes(found: Any) -> Iterator[Node]:
    """Yield every node, whatever its key, so that no part of the tree goes unchecked."""
    if isinstance(found, dict):
        yield found
        for inner in list(found.values()):
            yield from _nodes(inner)
    elif isinstance(found, list):
        for inner in found:
            yield from _nodes(inner)


def _cte_names(node: Node) -> Iterator[str]:
    entries = node.get("cte_map", {}).get("map", []) if isinstance(node.get("cte_map"), dict) else []
    for entry in entries:
        name = str(entry.get("key", ""))
        if not name.replace("_", "a").isalnum():
            raise SourceQueryFailed(f"WITH {name!r}: such a name is made of letters, digits and _ alone")
        yield name
    if node.get("type") in ("RECURSIVE_CTE_NODE", "CTE_NODE") and node.get("cte_name"):
        yield str(node["cte_name"])


def _check_expression(node: Node, functions: Functions, called: set[str]) -> None:
    kind = node.get("class")
    if kind is None:
        return
    if kind not in _EXPRESSIONS:
        raise SourceQueryFailed(f"the query has an expression of the kind {kind}, which is not allowed here")
    if kind in ("FUNCTION", "WINDOW"):
        name = str(node.get("function_name", "")).lower()
        if name in READERS or name in _TABLE_FUNCTIONS:
            return  # checked as a table; DuckDB has no such scalar function
        _check_function(node, name, functions)
        called.add(name)


def _check_function(node: Node, name: str, functions: Functions) -> None:
    path = node.get("qualified_name", {}).get("path", [name])
    if node.get("schema") or node.get("catalog") or len(path) > 1:
        raise SourceQueryFailed(f"{'.'.join(map(str, path))}: call functions without a schema")
    allowed = name in functions.names or name in UNSTABLE
    if not allowed or name in _FORBIDDEN or name.startswith(_FORBIDDEN_PREFIXES):
        raise SourceQueryFailed(f"the function {name} is not allowed here, or there is none of that name")


def _is_unstable_name(node: Node) -> bool:
    """Return whether the node is a word such as current_date, which the parser takes for a column."""
    names: list[str] = node.get("column_names", []) if node.get("class") == "COLUMN_REF" else []
    return bool(names) and names[-1].lower() in UNSTABLE


def _check_table(node: Node, named: set[str]) -> FileScan | None:
    kind = node.get("type")
    if "class" in node or not isinstance(kind, str):
        return None
    if kind in ("BASE_TABLE", "TABLE_FUNCTION"):
        return _base_table(node, named) if kind == "BASE_TABLE" else _table_function(node)
    if kind.endswith(("_REF", "PIVOT")) or (kind.endswith("_NODE") and kind not in _QUERIES):
        raise SourceQueryFailed(f"the query has a part of the kind {kind}, which is not allowed here")
    if "sample" in node and "alias" in node and kind not in _TABLES:
        raise SourceQueryFailed(f"the query reads from something of the kind {kind}, which is not allowed here")
    return None


def _base_table(node: Node, named: set[str]) -> FileScan | None:
    name = str(node.get("table_name", ""))
    path = node.get("qualified_name", {}).get("path", [name])
    if node.get("schema_name") or node.get("catalog_name") or len(path) != 1 or node.get("at_clause"):
        raise SourceQueryFailed(
            f"{'.'.join(map(str, path))} is no file: write the names of files in quotes, such as FROM 'sales/*.csv'"
        )
    if name.lower() in named:
        return None
    reader = _reader_of(name)
    # Turn it into a call of the reader; files are put in before it is run.
    alias = node.get("alias") or ""
    node["function"] = {"function_name": reader, "alias": alias}
    node["type"] = "TABLE_FUNCTION"
    return FileScan((name,), reader, frozenset(), node)


def _reader_of(name: str) -> str:
    plain = name.lower()
    for packed in _COMPRESSED:
        plain = plain.removesuffix(packed)
    for ending, reader in _ENDINGS.items():
        if plain.endswith(ending):
            return reader
    raise SourceQueryFailed(
        f"{name!r} is no file that can be read: its name ends with {', '.join(_ENDINGS)}, or with one of these and"
        f" {' or '.join(_COMPRESSED)}; for others call read_csv('...'), read_json('...') or read_parquet('...')"
    )


def _table_function(node: Node) -> FileScan | None:
    function = node.get("function", {})
    name = str(function.get("function_name", "")).lower()
    if name in _TABLE_FUNCTIONS:
        return None
    if name not in READERS or function.get("schema") or function.get("catalog"):
        raise SourceQueryFailed(f"FROM {name}(...) is not allowed here; there are: {', '.join(sorted(READERS))}")
    arguments = function.get("arguments", [])
    if not arguments:
        raise SourceQueryFailed(f"{name} lacks the names of the files")
    parameters = frozenset(_parameter(name, argument) for argument in arguments[1:])
    return FileScan(tuple(_patterns(name, arguments[0])), name, parameters, node)


def _parameter(reader: str, argument: Node) -> str:
    expression = argument.get("expression", {})
    name = str(argument.get("name") or "")
    if not name and expression.get("type") == "COMPARE_EQUAL":
        names = expression.get("left", {}).get("column_names", [])
        name = str(names[0]) if len(names) == 1 else ""
    if name.lower() not in READERS[reader]:
        raise SourceQueryFailed(
            f"{reader} has no parameter {name!r} here; it has: {', '.join(sorted(READERS[reader]))}"
        )
    return name.lower()


def _patterns(reader: str, argument: Node) -> Iterator[str]:
    expression = argument.get("expression", {})
    inner = [one.get("expression", {}) for one in expression.get("arguments", [])]
    texts = inner if expression.get("function_name") == "list_value" else [expression]
    for one in texts:
        literal = one.get("literal", {})
        if one.get("class") != "CONSTANT" or literal.get("kind") != "STRING":
            raise SourceQueryFailed(f"{reader} takes the names of files as a text, or as a list of texts")
        yield str(literal["text"])


def _is_rowwise(node: Node) -> bool:
    """Return whether rows only pass through: no grouping, joining, sorting, counting or sampling."""
    if node.get("type") != "SELECT_NODE" or node.get("modifiers") or node.get("cte_map", {}).get("map"):
        return False
    if any(node.get(part) for part in ("group_expressions", "group_sets", "having", "qualify", "sample")):
        return False
    if node.get("aggregate_handling") != "STANDARD_HANDLING":
        return False
    expressions = [*node.get("select_list", []), node.get("where_clause")]
    if any(inner.get("class") in ("WINDOW", "SUBQUERY") for inner in _nodes(expressions)):
        return False
    table = node.get("from_table") or {}
    if table.get("sample"):
        return False
    if table.get("type") == "SUBQUERY":
        return _is_rowwise(table.get("subquery", {}).get("node", {}))
    return table.get("type") == "TABLE_FUNCTION" and "function" in table


def put_in(reading: FileScan, call: Node) -> None:
    """Put files into a reading, as a parsed call; the author's parameters stay."""
    made, node = call["statements"][0]["node"]["from_table"], reading.node
    function = node["function"]
    own = function.get("arguments", [])[1:] if "arguments" in function else []
    alias, columns, sample = node.get("alias", ""), node.get("column_name_alias", []), node.get("sample")
    node.clear()
    node.update(made)
    node["function"]["arguments"] += own
    # Without an alias, columns are qualified by the name that the author wrote.
    node.update(alias=alias or _plain_alias(reading), column_name_alias=columns, sample=sample)


def selecting(tree: Node, reading: FileScan) -> Node:
    """Return the tree of `SELECT * FROM` one reading."""
    star = {"class": "STAR", "type": "STAR", "alias": "", "relation_name": "", "exclude_list": [], "replace_list": []}
    [statement] = tree["statements"]
    node: Node = {
        "type": "SELECT_NODE",
        "modifiers": [],
        "cte_map": {"map": []},
        "select_list": [star | {"columns": False, "expr": None, "qualified_exclude_list": [], "rename_list": []}],
        "from_table": reading.node | {"sample": None, "column_name_alias": []},
        "where_clause": None,
        "group_expressions": [],
        "group_sets": [],
        "aggregate_handling": "STANDARD_HANDLING",
        "having": None,
        "sample": None,
        "qualify": None,
    }
    return {"error": False, "statements": [statement | {"node": node}]}


def _plain_alias(reading: FileScan) -> str:
    return reading.patterns[0] if len(reading.patterns) == 1 else ""


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
