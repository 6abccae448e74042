"""Provide a small cinema that changes at random, and queries whose marts must follow it."""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import psycopg
from psycopg.rows import tuple_row
from psycopg.sql import SQL, Identifier, Literal

from tests.corpus import queries as corpus
from vitrina.connectors.postgres.derive.derivation import QueryDerivation, derive
from vitrina.ports.live import Change, Stale
from vitrina.store.database import Connection

SCHEMA = """
CREATE TABLE content.film (id int PRIMARY KEY, title text, kind text NOT NULL, studio_id int, rating int, code text,
                           twice int GENERATED ALWAYS AS (rating * 2) STORED);
CREATE TABLE content.person (id int PRIMARY KEY, name text, boss_id int);
CREATE TABLE content.part (id int PRIMARY KEY, film_id int, person_id int, role text NOT NULL);
CREATE TABLE content.genre (id int PRIMARY KEY, name text NOT NULL, film_id int);
CREATE TABLE content.film_genre (film_id int NOT NULL, genre_id int NOT NULL, PRIMARY KEY (film_id, genre_id));
CREATE TABLE content.studio (id int PRIMARY KEY, name text, country text);
CREATE TABLE content.vote (id int PRIMARY KEY, film_id int, person_id int, score int, at int NOT NULL);
CREATE TABLE content.visit (id int, film_id int, day int NOT NULL, PRIMARY KEY (id, day)) PARTITION BY LIST (day);
CREATE TABLE content.visit_a PARTITION OF content.visit FOR VALUES IN (1, 2, 3);
CREATE TABLE content.visit_b PARTITION OF content.visit DEFAULT;
CREATE VIEW content.acted AS
    SELECT p.film_id AS film, n.name AS actor, n.id AS person
    FROM content.part p JOIN content.person n ON n.id = p.person_id
    WHERE p.role = 'a';
CREATE VIEW content.latest_vote AS
    SELECT DISTINCT ON (v.film_id) v.film_id, v.id AS vote_id, v.score FROM content.vote v
    ORDER BY v.film_id, v.at DESC, v.id;
"""
TABLES: dict[str, dict[str, Sequence[Any]]] = {
    "film": {"title": "abc", "kind": ("m", "s"), "studio_id": (1, 2, 3, 4, None), "rating": (1, 2, 3, None),
             "code": ("x", "y", None)},
    "person": {"name": ("ann", "bob", None), "boss_id": (1, 2, 3, 4, None)},
    "part": {"film_id": (1, 2, 3, 4, 5, None), "person_id": (1, 2, 3, 4, None), "role": ("a", "d")},
    "genre": {"name": ("g", "h"), "film_id": (1, 2, 3, None)},
    "film_genre": {},
    "studio": {"name": ("u", "v"), "country": ("fr", "us", None)},
    "vote": {"film_id": (1, 2, 3, 4, 5, None), "person_id": (1, 2, 3, None), "score": (1, 2, 3, None), "at": (1, 2, 3)},
    "visit": {"film_id": (1, 2, 3, 4), "day": (1, 2, 5)},
}  # fmt: skip
_LOGGED = """
CREATE TABLE content.changes (number serial, relation text, kind text, old jsonb, new jsonb);
CREATE FUNCTION content.log() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    INSERT INTO content.changes (relation, kind, old, new) VALUES (
        'content.' || TG_ARGV[0], lower(TG_OP),
        CASE WHEN TG_OP <> 'INSERT' THEN to_jsonb(OLD) - 'twice' END,
        CASE WHEN TG_OP <> 'DELETE' THEN to_jsonb(NEW) - 'twice' END);
    RETURN NULL;
END $$;
"""


class Followed(NamedTuple):
    """Hold a query, its key, and the tables whose changes may concern every key."""

    name: str
    text: str
    key: tuple[str, ...]
    every_key: frozenset[str] = frozenset()


def set_up(session: Connection) -> None:
    session.execute(SCHEMA + _LOGGED)
    for table in TABLES:
        session.execute(
            SQL("CREATE TRIGGER log AFTER INSERT OR UPDATE OR DELETE ON content.{} FOR EACH ROW"
                " EXECUTE FUNCTION content.log({})").format(Identifier(table), Literal(table))
        )  # fmt: skip
    for table in (*TABLES.keys() - {"visit"}, "visit_a", "visit_b"):
        session.execute(SQL("ALTER TABLE content.{} REPLICA IDENTITY FULL").format(Identifier(table)))
    session.execute("GRANT SELECT ON ALL TABLES IN SCHEMA content TO PUBLIC; GRANT USAGE ON SCHEMA content TO PUBLIC")


def change_at_random(session: Connection, chance: random.Random, transactions: int = 2) -> list[Change]:
    """Run some transactions and return the changes, as the log would carry them."""
    session.execute("DELETE FROM content.changes")
    for _ in range(chance.randint(1, transactions)):
        with session.transaction():
            for _ in range(chance.randint(1, 5)):
                change_one(session, chance)
    return changes(session)


def changes(session: Connection) -> list[Change]:
    with session.cursor(row_factory=tuple_row) as cursor:
        rows = cursor.execute("SELECT number, relation, kind, old, new FROM content.changes ORDER BY number").fetchall()
    return [Change(n, 0, 1, relation, kind, _image(old), _image(new)) for n, relation, kind, old, new in rows]


def _image(row: dict[str, Any] | None) -> dict[str, str | None] | None:
    return None if row is None else {name: None if value is None else str(value) for name, value in row.items()}


def change_one(session: Connection, chance: random.Random) -> None:
    table = chance.choice(list(TABLES))
    verb = chance.choices(("insert", "update", "delete", "key"), (8, 6, 1, 1))[0]
    try:
        with session.transaction():
            getattr(Dml, verb)(session, chance, table)
    except psycopg.errors.UniqueViolation:
        pass


class Dml:
    """Execute single random statements."""

    @staticmethod
    def insert(session: Connection, chance: random.Random, table: str) -> None:
        row: dict[str, Any] = {name: chance.choice(values) for name, values in TABLES[table].items()}
        if table == "film_genre":
            row = {"film_id": chance.randint(1, 6), "genre_id": chance.randint(1, 4)}
        else:
            row["id"] = chance.randint(1, 7)
        session.execute(
            SQL("INSERT INTO content.{} ({}) VALUES ({})").format(
                Identifier(table), SQL(", ").join(map(Identifier, row)), SQL(", ").join(map(Literal, row.values()))
            )
        )

    @staticmethod
    def update(session: Connection, chance: random.Random, table: str) -> None:
        columns = TABLES[table]
        if not columns:
            return Dml.key(session, chance, table)
        chosen = chance.sample(list(columns), chance.randint(1, min(2, len(columns))))
        values = [SQL("{} = {}").format(Identifier(name), Literal(chance.choice(columns[name]))) for name in chosen]
        return Dml._set(session, chance, table, SQL(", ").join(values))

    @staticmethod
    def key(session: Connection, chance: random.Random, table: str) -> None:
        name = chance.choice(("film_id", "genre_id")) if table == "film_genre" else "id"
        Dml._set(session, chance, table, SQL("{} = {}").format(Identifier(name), Literal(chance.randint(1, 7))))

    @staticmethod
    def _set(session: Connection, chance: random.Random, table: str, what: Any) -> None:
        where = Dml._where(chance, table)
        session.execute(SQL("UPDATE content.{} SET {} WHERE {}").format(Identifier(table), what, where))

    @staticmethod
    def delete(session: Connection, chance: random.Random, table: str) -> None:
        session.execute(SQL("DELETE FROM content.{} WHERE {}").format(Identifier(table), Dml._where(chance, table)))

    @staticmethod
    def _where(chance: random.Random, table: str) -> Any:
        name = chance.choice(("film_id", "genre_id")) if table == "film_genre" else "id"
        return SQL("{} = {}").format(Identifier(name), Literal(chance.randint(1, 7)))


@dataclass
class Mart:
    """Keep a copy of a query's rows up to date by stale keys alone."""

    followed: Followed
    derivation: QueryDerivation
    names: list[str]
    rows: "Counter[tuple[Any, ...]]"
    reloads: int = 0
    asked: int = 0

    @classmethod
    def loaded(cls, session: Connection, followed: Followed) -> "Mart":
        names, types = described(session, followed.text)
        key = [(name, types[names.index(name)]) for name in followed.key]
        derivation = derive(session, followed.text, key)
        mart = cls(followed, derivation, names, Counter())
        mart.rows = mart.full(session)
        return mart

    def full(self, session: Connection) -> "Counter[tuple[Any, ...]]":
        return self._read(session, self.followed.text)

    def follow(self, session: Connection, changed: Sequence[Change]) -> None:
        stale = self.derivation.stale(session, changed)
        if stale.everything:
            self.reloads += 1
            self.rows = self.full(session)
            return
        self.asked += len(stale.keys)
        if stale.keys:
            self._replace(session, stale)

    def _replace(self, session: Connection, stale: Stale) -> None:
        places = [self.names.index(name) for name in stale.columns]
        wanted = set(stale.keys)
        self.rows = Counter(
            {row: n for row, n in self.rows.items() if tuple(str(row[place]) for place in places) not in wanted}
        )
        found = self._read(session, self.followed.text)
        self.rows += Counter(
            {row: n for row, n in found.items() if tuple(str(row[place]) for place in places) in wanted}
        )

    def _read(self, session: Connection, text: str) -> "Counter[tuple[Any, ...]]":
        """Return the rows whose key is not NULL; others are not covered by the guarantee."""
        with session.cursor(row_factory=tuple_row) as cursor:
            rows = cursor.execute(text.encode()).fetchall()
        places = [self.names.index(name) for name in self.followed.key]
        return Counter(row for row in rows if all(row[place] is not None for place in places))


def described(session: Connection, text: str) -> tuple[list[str], list[str]]:
    with session.cursor(row_factory=tuple_row) as cursor:
        cursor.execute(f"SELECT * FROM ({text}) AS q LIMIT 0".encode())
        columns = cursor.description or []
        types = [
            cursor.execute("SELECT pg_catalog.format_type(%s::oid, -1)", [column.type_code]).fetchone()
            for column in columns
        ]
    return [column.name for column in columns], [kind[0] for kind in types if kind]


def differences(session: Connection, marts: Sequence[Mart], batches: int, chance: random.Random) -> Iterator[str]:
    """Change, follow and compare repeatedly."""
    for batch in range(batches):
        changed = change_at_random(session, chance)
        for mart in marts:
            mart.follow(session, changed)
            now = mart.full(session)
            if mart.rows != now:
                extra, missing = mart.rows - now, now - mart.rows
                yield f"{mart.followed.name}, batch {batch}: extra {extra}, missing {missing}, {changed}"
                mart.rows = now


def _queries() -> Iterator[Followed]:
    """Read the corpus: what a query shows; its key; tables whose changes may concern every key."""
    for query in corpus.followed():
        name, key, *every = query.title.split("; ")
        tables = every[0].removeprefix("every key: ").split(", ") if every else []
        yield Followed(name, query.sql.strip(), tuple(key.removeprefix("key: ").split(", ")), frozenset(tables))


QUERIES = list(_queries())
