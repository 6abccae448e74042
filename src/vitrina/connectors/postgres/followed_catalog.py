"""Detect catalog changes that the log does not report: attached partitions, altered types, replaced tables and views.

A fingerprint of the catalog is compared with every batch. If it differs, the query is planned again and fully loaded.
"""

from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg.rows import tuple_row

# Everything reachable from these names, including partitions: rows of a detached partition disappear without an entry
# in the log. A view's text names the relations that it reads, so a replaced one shows in it or in its own line.
_FINGERPRINT = """
WITH RECURSIVE named (name, oid) AS (
    SELECT w.name, pg_catalog.to_regclass(w.name)::oid FROM unnest(%s::text[]) AS w(name)
), part (name, oid, parent) AS (
    SELECT name, oid, NULL::oid FROM named
    UNION ALL
    SELECT part.name, i.inhrelid, i.inhparent FROM part JOIN pg_catalog.pg_inherits i ON i.inhparent = part.oid
), line AS (
    SELECT part.name, part.parent, part.oid, c.relkind, c.relfilenode, c.relreplident, c.relpersistence,
           pg_catalog.pg_get_expr(c.relpartbound, c.oid) AS bound,
           ARRAY(SELECT ROW(a.attnum, a.attname, a.atttypid, a.atttypmod, a.attnotnull, a.attgenerated)::text
                 FROM pg_catalog.pg_attribute a
                 WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum) AS columns,
           ARRAY(SELECT i.indkey::text FROM pg_catalog.pg_index i
                 WHERE i.indrelid = c.oid AND (i.indisprimary OR i.indisreplident) ORDER BY 1) AS identity,
           ARRAY(SELECT r.ev_action::text FROM pg_catalog.pg_rewrite r
                 WHERE r.ev_class = c.oid AND c.relkind = 'v' ORDER BY r.oid) AS view,
           ARRAY(SELECT ROW(p.pubname, p.pubinsert, p.pubupdate, p.pubdelete, p.pubtruncate, p.pubviaroot,
                            r.prattrs, r.prqual)::text
                 FROM pg_catalog.pg_publication_rel r JOIN pg_catalog.pg_publication p ON p.oid = r.prpubid
                 WHERE r.prrelid = c.oid AND (%s::text[] IS NULL OR p.pubname = ANY(%s)) ORDER BY 1) AS published
    FROM part LEFT JOIN pg_catalog.pg_class c ON c.oid = part.oid
)
SELECT pg_catalog.md5(coalesce(pg_catalog.string_agg(line::text, chr(10) ORDER BY line.name, line.oid), '')) FROM line
"""


def fingerprint(
    session: "psycopg.Connection[Any]", names: Sequence[str], publications: Sequence[str] | None = None
) -> str:
    """Return a digest of what the catalog says about names (`schema.table`, quoted as in SQL).

    Without `publications`, any publication that contains one of the tables counts.
    """
    given = list(publications) if publications is not None else None
    with session.cursor(row_factory=tuple_row) as cursor:
        row = cursor.execute(_FINGERPRINT, [sorted(names), given, given]).fetchone()
    if row is None:
        raise RuntimeError("an aggregate has a row")
    return str(row[0])
