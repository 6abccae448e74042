"""A small cinema that changes at random, and queries whose marts must follow it."""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import psycopg
from psycopg.rows import tuple_row
from psycopg.sql import SQL, Identifier, Literal

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
    SELECT p.film_id AS film, n.name AS actor, n.id AS person FROM content.part p JOIN content.person n ON n.id = p.person_id
    WHERE p.role = 'a';
CREATE VIEW content.latest_vote AS
    SELECT DISTINCT ON (v.film_id) v.film_id, v.id AS vote_id, v.score FROM content.vote v
    ORDER BY v.film_id, v.at DESC, v.id;
"""
TABLES: dict[str, dict[str, Sequence[Any]]] = {
    "film": {"title": "abc", "kind": ("m", "s"), "studio_id": (1, 2, 3, 4, None), "rating": (1, 2, 3, None), "code": ("x", "y", None)},
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
    """A query, its key, and the tables whose changes may concern every key."""

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
    """One statement each."""

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
    """A copy of a query's rows, kept true by stale keys alone."""

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
        """Return the rows whose key is not NULL: others are outside of the guarantee."""
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
    """Change, follow and compare, again and again."""
    for batch in range(batches):
        changed = change_at_random(session, chance)
        for mart in marts:
            mart.follow(session, changed)
            now = mart.full(session)
            if mart.rows != now:
                yield f"{mart.followed.name}, batch {batch}: extra {mart.rows - now}, missing {now - mart.rows}, {changed}"
                mart.rows = now


QUERIES = [
    Followed("one table", "SELECT id, title, rating FROM content.film WHERE rating > 1", ("id",)),
    Followed("inner join", "SELECT f.id, f.title, s.name FROM content.film f JOIN content.studio s ON s.id = f.studio_id", ("id",)),
    Followed("left join", "SELECT f.id, s.name, s.country FROM content.film f LEFT JOIN content.studio s ON s.id = f.studio_id", ("id",)),
    Followed("chain of left joins",
             "SELECT p.id, f.title, s.name FROM content.part p LEFT JOIN content.film f ON f.id = p.film_id"
             " LEFT JOIN content.studio s ON s.id = f.studio_id", ("id",)),
    Followed("right join", "SELECT v.id, f.title FROM content.film f RIGHT JOIN content.vote v ON v.film_id = f.id", ("id",)),
    Followed("full join plain",
             "SELECT coalesce(f.id, s.id) AS id, f.title, s.name FROM content.film f FULL JOIN content.studio s ON s.id = f.id", ("id",)),
    Followed("full join using", "SELECT id, f.title, s.name FROM content.film f FULL JOIN content.studio s USING (id)", ("id",)),
    Followed("group by with left joins",
             "SELECT f.id, f.title, count(v.id) AS votes, sum(v.score) AS score FROM content.film f"
             " LEFT JOIN content.vote v ON v.film_id = f.id GROUP BY f.id", ("id",)),
    Followed("aggregates in lateral",
             "SELECT f.id, f.title, c.n, d.n AS m FROM content.film f"
             " LEFT JOIN LATERAL (SELECT count(*) AS n FROM content.part p JOIN content.person n ON n.id = p.person_id"
             "   WHERE p.film_id = f.id) c ON true"
             " LEFT JOIN (SELECT film_id, count(*) AS n FROM content.vote GROUP BY film_id) d ON d.film_id = f.id", ("id",)),
    Followed("not exists", "SELECT f.id, f.title FROM content.film f WHERE NOT EXISTS (SELECT FROM content.vote v WHERE v.film_id = f.id AND v.score > 1)", ("id",)),
    Followed("exists by two tables",
             "SELECT n.id, n.name FROM content.person n WHERE EXISTS (SELECT FROM content.part p JOIN content.film f"
             " ON f.id = p.film_id WHERE p.person_id = n.id AND f.kind = 'm')", ("id",)),
    Followed("anti-join by null", "SELECT f.id, f.title FROM content.film f LEFT JOIN content.vote v ON v.film_id = f.id AND v.score = 3 WHERE v.id IS NULL", ("id",)),
    Followed("in", "SELECT id, title FROM content.film WHERE studio_id IN (SELECT id FROM content.studio WHERE country = 'fr')", ("id",)),
    Followed("not in nullable", "SELECT id, title FROM content.film WHERE id NOT IN (SELECT film_id FROM content.part WHERE role = 'd')",
             ("id",), frozenset({"content.part"})),
    Followed("not in, never null", "SELECT id, title FROM content.film WHERE id NOT IN (SELECT film_id FROM content.film_genre)", ("id",)),
    Followed("in as a value", "SELECT id, studio_id IN (SELECT id FROM content.studio) AS known FROM content.film",
             ("id",), frozenset({"content.studio"})),
    Followed("distinct on", "SELECT DISTINCT ON (film_id) film_id, id, score FROM content.vote ORDER BY film_id, at DESC, id", ("film_id",)),
    Followed("distinct on, key of the winner", "SELECT DISTINCT ON (film_id) id, film_id, score FROM content.vote ORDER BY film_id, at DESC, id", ("id",)),
    Followed("window", "SELECT id, film_id, rank() OVER (PARTITION BY film_id ORDER BY score, id) AS place FROM content.vote", ("id",)),
    Followed("two windows",
             "SELECT v.id, rank() OVER w AS a, count(*) OVER (PARTITION BY v.film_id, v.person_id) AS b FROM content.vote v"
             " WINDOW w AS (PARTITION BY v.film_id ORDER BY v.score)", ("id",)),
    Followed("top of each group by window",
             "SELECT r.film_id, r.id, f.title FROM (SELECT v.id, v.film_id, row_number() OVER (PARTITION BY v.film_id"
             " ORDER BY v.score DESC NULLS LAST, v.id) AS n FROM content.vote v) r"
             " LEFT JOIN content.film f ON f.id = r.film_id WHERE r.n = 1", ("id",)),
    Followed("window over a join",
             "SELECT p.id, f.studio_id, count(*) OVER (PARTITION BY f.studio_id) AS n FROM content.part p"
             " JOIN content.film f ON f.id = p.film_id", ("id",)),
    Followed("group by two tables", "SELECT s.country, f.kind, count(*) AS n FROM content.film f JOIN content.studio s ON s.id = f.studio_id GROUP BY 1, 2",
             ("country", "kind")),
    Followed("group by an expression", "SELECT rating / 2 AS half, kind, count(*) AS n FROM content.film GROUP BY rating / 2, kind", ("half", "kind")),
    Followed("group by the nullable side and another",
             "SELECT f.kind, coalesce(s.country, '-') AS country, count(*) AS n FROM content.film f"
             " LEFT JOIN content.studio s ON s.id = f.studio_id GROUP BY 1, 2", ("kind", "country")),
    Followed("union", "SELECT film_id, 'v' AS source FROM content.vote UNION SELECT film_id, 'p' FROM content.part WHERE role = 'a'", ("film_id", "source")),
    Followed("union all of joins",
             "SELECT 'f' || f.id AS key, s.name FROM content.film f JOIN content.studio s ON s.id = f.studio_id"
             " UNION ALL SELECT 'p' || p.id, b.name FROM content.person p LEFT JOIN content.person b ON b.id = p.boss_id", ("key",)),
    Followed("except", "SELECT id FROM content.film EXCEPT SELECT film_id FROM content.vote WHERE score = 1", ("id",)),
    Followed("intersect", "SELECT id FROM content.film INTERSECT ALL SELECT film_id FROM content.part", ("id",)),
    Followed("with", "WITH scored AS (SELECT film_id, avg(score)::numeric(9, 3) AS score FROM content.vote GROUP BY film_id)"
             " SELECT f.id, a.score, b.score AS again FROM content.film f LEFT JOIN scored a ON a.film_id = f.id"
             " LEFT JOIN scored b ON b.film_id = f.studio_id", ("id",)),
    Followed("lateral with limit",
             "SELECT f.id, b.id AS best, b.name FROM content.film f CROSS JOIN LATERAL (SELECT v.id, n.name FROM content.vote v"
             " LEFT JOIN content.person n ON n.id = v.person_id WHERE v.film_id = f.id ORDER BY v.score DESC NULLS LAST, v.id LIMIT 2) b",
             ("id", "best")),
    Followed("views", "SELECT a.film, a.person, a.actor, l.score FROM content.acted a LEFT JOIN content.latest_vote l ON l.film_id = a.film", ("film", "person")),
    Followed("composite key", "SELECT x.film_id, x.genre_id, f.title, g.name FROM content.film_genre x JOIN content.film f ON f.id = x.film_id"
             " JOIN content.genre g ON g.id = x.genre_id", ("film_id", "genre_id")),
    Followed("expression as key", "SELECT upper(f.code) || '-' || f.id AS code, s.name FROM content.film f LEFT JOIN content.studio s ON s.id = f.studio_id", ("code",)),
    Followed("self join", "SELECT a.id, b.name AS boss, c.name AS their_boss FROM content.person a LEFT JOIN content.person b ON b.id = a.boss_id"
             " LEFT JOIN content.person c ON c.id = b.boss_id", ("id",)),
    Followed("scalar sub-selects", "SELECT f.id, (SELECT max(score) FROM content.vote v WHERE v.film_id = f.id) AS best,"
             " array_to_string(ARRAY(SELECT g.name FROM content.film_genre x JOIN content.genre g ON g.id = x.genre_id WHERE x.film_id = f.id ORDER BY 1), 0::text) AS genres"
             " FROM content.film f", ("id",)),
    Followed("nested grouping", "SELECT t.kind, count(*) AS films, sum(t.n) AS votes FROM (SELECT f.id, f.kind, count(v.id) AS n FROM content.film f"
             " LEFT JOIN content.vote v ON v.film_id = f.id GROUP BY f.id, f.kind) t GROUP BY t.kind", ("kind",)),
    Followed("partitions", "SELECT f.id, count(x.id) AS visits, max(x.day) AS last FROM content.film f JOIN content.visit x ON x.film_id = f.id GROUP BY f.id", ("id",)),
    Followed("grouping sets", "SELECT f.kind, f.studio_id, count(*) AS n, grouping(f.studio_id) AS g FROM content.film f"
             " GROUP BY GROUPING SETS ((f.kind, f.studio_id), (f.kind))", ("kind",)),
    Followed("row comparison", "SELECT v.id, p.role FROM content.vote v JOIN content.part p ON (p.film_id, p.person_id) = (v.film_id, v.person_id)", ("id",)),
    Followed("natural and using", "SELECT id, x.genre_id, f.title FROM content.film f JOIN (SELECT film_id AS id, genre_id FROM content.film_genre) x USING (id)",
             ("id", "genre_id")),
    Followed("range join", "SELECT f.id, count(v.id) AS lower FROM content.film f LEFT JOIN content.vote v ON v.score < f.rating GROUP BY f.id",
             ("id",), frozenset({"content.vote"})),
    Followed("nullable bridge back",
             "SELECT f.id, g.id AS genre, s.name FROM content.genre g LEFT JOIN content.film f ON f.id = g.film_id"
             " LEFT JOIN content.studio s ON s.id = f.studio_id AND s.name = g.name", ("genre",)),
    Followed("condition of a left join on the kept side",
             "SELECT p.id, f.id AS film, s.name FROM content.part p JOIN content.film f ON f.id = p.film_id"
             " LEFT JOIN content.studio s ON s.id = f.studio_id AND p.person_id = f.rating", ("id",)),
    Followed("back through a nullable side",
             "SELECT v.id, n.name, v.score FROM content.film f LEFT JOIN content.person n ON n.id = f.rating"
             " LEFT JOIN content.part p ON p.person_id = n.id JOIN content.vote v ON v.film_id = f.id", ("id",)),
    Followed("two ways round an outer join",
             "SELECT v.id, f.title, s.country FROM content.vote v JOIN content.film f ON v.at < 9"
             " LEFT JOIN content.studio s ON s.id = f.studio_id AND s.id = v.film_id", ("id",), frozenset({"content.film"})),
    Followed("key of a union inside",
             "SELECT u.id, u.film_id, f.title FROM (SELECT id, film_id FROM content.vote UNION ALL"
             " SELECT id + 100, film_id FROM content.part) u LEFT JOIN content.film f ON f.id = u.film_id",
             ("id",), frozenset({"content.film"})),
    Followed("outer reference two levels up",
             "SELECT f.id, f.title FROM content.film f WHERE EXISTS (SELECT FROM content.part p WHERE p.film_id = f.id AND NOT EXISTS"
             " (SELECT FROM content.vote v WHERE v.person_id = p.person_id AND v.film_id = f.id))", ("id",)),
    Followed("sub-select in a join's condition",
             "SELECT f.id, s.name FROM content.film f LEFT JOIN content.studio s ON s.id = f.studio_id AND EXISTS"
             " (SELECT FROM content.genre g WHERE g.film_id = s.id)", ("id",)),
    Followed("window with groups of null", "SELECT v.id, n.boss_id, count(*) OVER (PARTITION BY n.boss_id) AS n FROM content.vote v"
             " JOIN content.person n ON n.id = v.person_id", ("id",)),
    Followed("distinct", "SELECT DISTINCT f.kind, s.country FROM content.film f JOIN content.studio s ON s.id = f.studio_id", ("kind", "country")),
    Followed("semi-join by two columns", "SELECT id, film_id FROM content.vote WHERE (film_id, person_id) IN (SELECT film_id, person_id FROM content.part)", ("id",)),
    Followed("first of two columns", "SELECT coalesce(s.name, f.title) AS label, f.kind FROM content.film f LEFT JOIN content.studio s ON s.id = f.studio_id", ("label",)),
    Followed("label of grouping sets", "SELECT f.kind, concat(f.kind, f.studio_id) AS label, count(*) AS n FROM content.film f"
             " GROUP BY GROUPING SETS ((f.kind, f.studio_id), (f.kind))", ("kind", "label")),
    Followed("not exists between two tables", "SELECT v.id, f.id AS film FROM content.film f JOIN content.vote v ON v.at < 9 WHERE NOT EXISTS"
             " (SELECT FROM content.part p WHERE p.film_id = f.id AND p.person_id = v.person_id)", ("id",), frozenset({"content.film"})),
    Followed("window over the nullable side", "SELECT g.id, w.n FROM content.genre g LEFT JOIN (SELECT f.id, count(*) OVER (PARTITION BY s.country) AS n"
             " FROM content.film f LEFT JOIN content.studio s ON s.id = f.studio_id) w ON w.id = g.film_id",
             ("id",), frozenset({"content.film", "content.studio"})),
    Followed("lateral union of columns", "SELECT f.id, u.k FROM content.film f CROSS JOIN LATERAL (SELECT f.id AS k UNION ALL SELECT f.rating) u", ("id", "k")),
    Followed("join by a default", "SELECT f.id, g.id AS genre FROM content.film f LEFT JOIN content.studio s ON s.id = f.studio_id"
             " JOIN content.genre g ON g.name = coalesce(s.name, 'g')", ("id",), frozenset({"content.genre"})),
]  # fmt: skip
