"""Generate random queries: joins of all kinds, sub-selects, groups and windows, in any combination."""

import random
from collections.abc import Iterator
from itertools import count

from tests.support.followed import Followed

COLUMNS = {
    "film": ("id", "studio_id", "rating"),
    "person": ("id", "boss_id"),
    "part": ("id", "film_id", "person_id"),
    "genre": ("id", "film_id"),
    "film_genre": ("film_id", "genre_id"),
    "studio": ("id",),
    "vote": ("id", "film_id", "person_id", "score"),
}
Item = tuple[str, tuple[str, ...]]  # alias and columns
Items = list[Item]
JOINS = ("JOIN", "JOIN", "LEFT JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN")


class Author:
    """Generate queries."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self._numbers = count()

    def queries(self, number: int) -> Iterator[Followed]:
        for place in range(number):
            self._numbers = count()
            yield self.query(f"query {place}")

    def query(self, name: str) -> Followed:
        items, source = self.source(self.chance.randint(1, 4))
        where = self.where(items)
        shape = self.chance.choice(("plain", "plain", "group", "window", "distinct on", "distinct", "union"))
        columns = self.columns(items, 3)
        return getattr(self, f"_{shape.replace(' ', '_')}")(name, columns, f"{source}{where}")  # type: ignore[no-any-return]

    def _plain(self, name: str, columns: list[str], source: str) -> Followed:
        outputs = [f"{column} AS c{n}" for n, column in enumerate(columns)]
        key = self.chance.sample([f"c{n}" for n in range(len(columns))], self.chance.randint(1, 2))
        if self.chance.random() < 0.25:
            outputs.append(f"{self.expression(columns)} AS e")
            key = ["e"]
        return Followed(name, f"SELECT {', '.join(outputs)} FROM {source}", tuple(key))

    def _group(self, name: str, columns: list[str], source: str) -> Followed:
        groups, rest = columns[: self.chance.randint(1, 2)], columns[-1]
        named = [f"{column} AS c{n}" for n, column in enumerate(groups)]
        key = tuple(f"c{n}" for n in range(len(groups)))
        text = f"SELECT {', '.join(named)}, count(*) AS n, sum({rest}) AS s FROM {source} GROUP BY {', '.join(groups)}"
        return Followed(name, text, key[: self.chance.randint(1, len(key))])

    def _window(self, name: str, columns: list[str], source: str) -> Followed:
        named = [f"{column} AS c{n}" for n, column in enumerate(columns)]
        over = f"count(*) OVER (PARTITION BY {self.chance.choice(columns)})"
        return Followed(
            name, f"SELECT {', '.join(named)}, {over} AS w FROM {source}", (self.chance.choice(("c0", "c1")),)
        )

    def _distinct_on(self, name: str, columns: list[str], source: str) -> Followed:
        named = ", ".join(f"{column} AS c{n}" for n, column in enumerate(columns))
        on = self.chance.choice(columns)
        order = ", ".join([on, *(column for column in columns if column != on)])
        text = f"SELECT DISTINCT ON ({on}) {named} FROM {source} ORDER BY {order}"
        return Followed(name, text, (self.chance.choice(("c0", "c1")),))

    def _distinct(self, name: str, columns: list[str], source: str) -> Followed:
        made = self._plain(name, columns, source)
        return made._replace(text=made.text.replace("SELECT", "SELECT DISTINCT", 1))

    def _union(self, name: str, columns: list[str], source: str) -> Followed:
        word = self.chance.choice(("UNION", "UNION ALL", "EXCEPT", "INTERSECT"))
        items, other = self.source(2)
        second = ", ".join((self.columns(items, 3) * 3)[: len(columns)])
        named = ", ".join(f"{column} AS c{n}" for n, column in enumerate(columns))
        text = f"SELECT {named} FROM {source} {word} SELECT {second} FROM {other}{self.where(items)}"
        return Followed(name, text, (self.chance.choice(("c0", "c1")),))

    def expression(self, columns: list[str]) -> str:
        one, two = columns[0], columns[-1]
        return self.chance.choice(
            (f"coalesce({one}, {two})", f"{one} + {two}", f"concat({one}, '-', {two})", f"greatest({one}, {two})")
        )

    def source(self, number: int) -> tuple[Items, str]:
        """Return the items and the text."""
        items: Items = []
        text = ""
        for _ in range(number):
            alias, columns, written = self.item(items)
            if not items:
                text = written
            elif written.startswith("LATERAL"):
                join = self.chance.choice(("JOIN", "LEFT JOIN"))
                text += f" {join} {written} ON {self.condition(items, (alias, columns), join)}"
            else:
                join = self.chance.choice(JOINS)
                text += f" {join} {written} ON {self.condition(items, (alias, columns), join)}"
            items.append((alias, columns))
        return items, text

    def item(self, before: Items) -> tuple[str, tuple[str, ...], str]:
        alias = f"t{next(self._numbers)}"
        table = self.chance.choice(list(COLUMNS))
        columns = COLUMNS[table]
        one, two = self.chance.choice(columns), self.chance.choice(columns)
        kind = self.chance.random()
        plain = f"content.{table} {alias}"
        if kind < 0.55:
            return alias, columns, plain
        if kind < 0.65:
            return (
                alias,
                ("g", "n"),
                f"(SELECT i.{one} AS g, count(*)::int AS n FROM content.{table} i GROUP BY i.{one}) {alias}",
            )
        if kind < 0.72:
            return (
                alias,
                ("g", "h", "r"),
                (
                    f"(SELECT i.{one} AS g, i.{two} AS h, rank() OVER (PARTITION BY i.{one} ORDER BY i.{two})::int AS r"
                    f" FROM content.{table} i) {alias}"
                ),
            )
        if kind < 0.79:
            return (
                alias,
                ("g", "h"),
                (
                    f"(SELECT DISTINCT ON (i.{one}) i.{one} AS g, i.{columns[0]} AS h FROM content.{table} i"
                    f" ORDER BY i.{one}, i.{columns[-1]}, i.{columns[0]}) {alias}"
                ),
            )
        if kind < 0.85:
            other = self.chance.choice(list(COLUMNS))
            return (
                alias,
                ("u",),
                (
                    f"(SELECT {one} AS u FROM content.{table}"
                    f" UNION ALL SELECT {self.chance.choice(COLUMNS[other])} FROM content.{other}) {alias}"
                ),
            )
        if kind < 0.92 or not before:
            inner, text = self.source(2)
            first, second = self.columns(inner, 2)[0], self.columns(inner, 2)[-1]
            return (
                alias,
                ("p", "q"),
                f"(SELECT {first} AS p, {second} AS q FROM {text}{self.where(inner, 0.3)}) {alias}",
            )
        correlated = f"i.{one} = {self.any(before)}"
        return (
            alias,
            ("l",),
            (
                f"LATERAL (SELECT i.{two} AS l FROM content.{table} i WHERE {correlated}"
                f" ORDER BY i.{columns[0]}, i.{columns[-1]} LIMIT 2) {alias}"
            ),
        )

    def condition(self, before: Items, item: Item, join: str) -> str:
        alias, columns = item
        own = f"{alias}.{self.chance.choice(columns)}"
        kind = self.chance.random()
        equal = f"{own} = {self.any(before)}"
        if kind < 0.65 or join == "FULL JOIN":
            return equal
        if kind < 0.75:
            return f"{equal} AND {self.any(before)} = {self.any([*before, item])}"
        if kind < 0.85:
            return f"{equal} AND {self.any([*before, item])} > 2"
        if kind < 0.93:
            return f"{equal} AND {self.exists([*before, item])}"
        return f"{own} < {self.any(before)}"

    def where(self, items: Items, share: float = 0.6) -> str:
        if self.chance.random() > share:
            return ""
        one, two = self.any(items), self.any(items)
        table = self.chance.choice(list(COLUMNS))
        inner = f"SELECT i.{self.chance.choice(COLUMNS[table])} FROM content.{table} i"
        return " WHERE " + self.chance.choice((
            f"{one} = {two}", f"{one} > 1", f"{one} IS NULL", self.exists(items), f"NOT {self.exists(items)}",
            f"{one} IN ({inner})", f"{one} NOT IN ({inner})", f"{one} = {two} OR {self.exists(items)}",
            f"{one} = (SELECT max(i.{COLUMNS[table][0]}) FROM content.{table} i WHERE i.{COLUMNS[table][-1]} = {two})",
        ))  # fmt: skip

    def exists(self, items: Items) -> str:
        table = self.chance.choice(list(COLUMNS))
        alias = f"x{next(self._numbers)}"
        columns = COLUMNS[table]
        text = f"{alias}.{self.chance.choice(columns)} = {self.any(items)}"
        if self.chance.random() < 0.4:
            text += f" AND {alias}.{self.chance.choice(columns)} = {self.any(items)}"
        return f"EXISTS (SELECT FROM content.{table} {alias} WHERE {text})"

    def any(self, items: Items) -> str:
        alias, columns = self.chance.choice(items)
        return f"{alias}.{self.chance.choice(columns)}"

    def columns(self, items: Items, number: int) -> list[str]:
        every = [f"{alias}.{column}" for alias, columns in items for column in columns]
        chosen = self.chance.sample(every, min(number, len(every)))
        return chosen if len(chosen) > 1 else chosen * 2
