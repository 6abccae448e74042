"""Texts written as an array by hand are what Postgres reads."""

from vitrina.store import database
from vitrina.store.database import Connection

TEXTS = [
    "",
    "plain",
    "NULL",
    None,
    "a,b",
    "{x}",
    'quo"te',
    "back\\slash",
    '\\"',
    " blank ",
    "line\nbreak",
    "tab\t",
    "ü☃",
]


def test_an_array_of_texts_comes_back_as_it_was(metastore: Connection) -> None:
    row = database.one(metastore.execute("SELECT %s::text[] AS texts", [database.text_array(TEXTS)]))
    assert row["texts"] == TEXTS
