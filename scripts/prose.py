"""Print how the prose reads: docstrings that begin with a verb, and words that the style of this project avoids.

    .venv/bin/python scripts/prose.py             figures by directory (`make prose`)
    .venv/bin/python scripts/prose.py --files     offending files, those with the most words first
    .venv/bin/python scripts/prose.py --where     every place: file, line, word, text
    .venv/bin/python scripts/prose.py --where src/vitrina/loads docs/how-to/live.md     only there
    .venv/bin/python scripts/prose.py --openings  docstrings that do not begin with a verb

`tests/docs/test_words.py` asserts both. The words are explained in CONTRIBUTING.md, "English".
"""

import argparse
import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "vitrina"
WANTED_PERCENT = 70

# Each word, and what to write instead.
WORDS = {
    "behind": "after",
    "anew": "again, from scratch",
    "at work": "running",
    "wish(?:es|ed)?": "request",
    "letters?": "rejected row, dead letter",
    "gone": "removed, missing",
    "nobody": "name the actor",
    "somebody": "name the actor",
    "anybody": "name the actor",
    "everybody": "name the actor",
    "whoever": "name the actor",
    "in vain": "say what is not done",
    "for ever": "forever",
}
# Correct uses. Each pattern covers the word and what makes it correct.
ALLOWED = (
    r"dead[- _]letters?",  # the glossary's word
    # Characters of an alphabet.
    r"letters?,? (?:and|or) (?:an? )?(?:digits?|numbers?)|letters?, digits|letters? of (?:a|the|its) name",
    r"(?:capital|lower-?case|upper-?case|small|ASCII) letters?|(?:with|is not) a letter\b",
    r"behind (?:a|the|an|your|its) (?:reverse |caching |TLS )?(?:proxy|load balancer|pooler|firewall|ingress)",
    r"(?:fall|falls|fell|fallen|falling|lag|lags|lagging|left|queue|queues|queued) (?:far |up )?behind",
    # Lag: "how far it is behind", "ten seconds behind".
    r"far (?:\w+ ){0,2}(?:is |are |may be )?behind|(?:seconds?|minutes?|hours?|bytes) behind",
    r"(?:is|are) behind(?=[.,;]|$)|behind its (?:feed|source)",
    r"410 Gone",
)
# A word that begins a docstring and is a verb whatever follows it.
VERBS = frozenset(
    """
    abort accept acknowledge acquire add adjust admit adopt advance aggregate allow analyse analyze announce append
    apply ask assemble assert assign assume attach authenticate authorise avoid await be become begin bind bound break
    bring build bump call canonicalise carry cast catch choose claim clean clear close collect combine come commit
    compare compile complete compose compress compute concatenate confirm connect construct consume continue convert
    correct create deactivate decide declare decode decompress decrypt defer define delay delete deliver derive
    describe deserialise detach detect determine disable discard disconnect discover dispatch distribute divide do
    download drain draw drop emit empty enable encode encrypt enforce ensure enter enumerate erase escape establish
    estimate evaluate examine execute exit expand expect expire explain export expose extend extract fail fetch fill
    find finish fire fit flatten flush follow forbid forget fork forward free freeze gather generate get give go grant
    halt handle have hide hold honour identify ignore import include increment infer inform initialise insert inspect
    install interpret interrupt intersect invoke issue iterate join keep kill know launch learn leave lend let listen
    locate lose lower make mask match measure memorise merge migrate mimic modify move need negotiate normalise notify
    obey observe obtain offer omit open override parse partition pass perform persist pick poll populate postpone
    prefer prefix prepare prepend preserve pretend prevent print produce promise propagate prove provide prune publish
    pull purge push put qualify quote raise read rebuild recall receive recognise recompute reconcile reconnect
    reconstruct recover redact redirect reduce refer refill refresh refuse register reject release reload remember
    remind remove rename render renew reopen reorder repair repeat replace replay represent reproduce require reraise
    reread rerun reserve reset resolve respond restart restore restrict resume retain retrieve retry return reuse
    revert revoke rewrite roll rotate save say seal see seek seize select send separate serialise serve settle shift
    shorten shrink shut sign simulate skip sleep solve sort spawn specify spell split spread start stay stop store
    strip submit subtract succeed suggest suppress survive swap switch sync synchronise take talk teach tear tell
    terminate test throw tidy toggle transform translate traverse truncate try turn undo unite unlock unpack
    unregister unwrap update upload upsert use validate verify visit wait wake walk warn weaken widen withdraw wrap
    write yield
    """.split()
)
# A verb or a noun: a verb only if an object follows, as in "Load a batch" and not in "Load of one range".
VERBS_OR_NOUNS = frozenset(
    """
    alias answer audit batch benchmark block cache cancel cap change check checkpoint copy count cover cut date doubt
    dump echo end escort file filter fix flag format function group guard guess hand hash heartbeat hint hook index
    insert judge label limit line link list load lock log look map mark message mirror name note number object order
    pack page pair pause pin place plan point post preview profile query queue rank record report request result run
    sample scan schedule score search set shape share show snapshot stage stamp stand state step stream sum table tag
    time total touch trace track trim trust value view watch work
    """.split()
)
NOT_AN_OBJECT = frozenset("of is are was were that which who has have had and or in on at from by to :".split())
# "Check that a key is unique", "Record which session holds the lock": these take a clause.
WITH_CLAUSE = frozenset("check note plan record report show".split())
# "Look at the catalog", "Work through the queue": these take a preposition.
WITH_PREPOSITION = frozenset(
    "check count end guard hand log look plan point post query record search set show stand wait watch work".split()
)
PREPOSITIONS = frozenset("at for through in on off back out down up over against with by before from to as".split())

DOCUMENTS = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "bench/README.md")
# Read whole: comments and texts cannot be told from the rest.
CONFIGURATION = (".env.sample", "Makefile", "Dockerfile", "mkdocs.yml", "infra/**/*.*", ".ci/*")
FENCED = re.compile(r"^( *)(```|~~~).*?^\1\2[^\n]*$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)
TARGET = re.compile(r"(?<=\]\()[^)\s]+(?=\))")
PATTERN = re.compile(rf"\b(?:{'|'.join(WORDS)})\b", re.IGNORECASE)
CORRECT = re.compile("|".join(ALLOWED), re.IGNORECASE)
SQL = re.compile(r"\s*(?:SELECT|INSERT|UPDATE|DELETE|WITH|CREATE|ALTER|FROM|WHERE|JOIN|LEFT JOIN|AND|ON)\b")
QUOTED = re.compile(r"`[^`\n]+`|%\(\w+\)s|\{[^{}\n]*\}")


class Place(NamedTuple):
    """A word of the list, where it stands."""

    file: str
    line: int
    word: str
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.word}: {self.text}"


class Opening(NamedTuple):
    """The first words of a docstring of a function or class."""

    file: str
    line: int
    text: str

    @property
    def is_imperative(self) -> bool:
        return begins_with_verb(self.text)

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.text.splitlines()[0]}"


def begins_with_verb(text: str) -> bool:
    """Decide whether a docstring tells its reader what the code does in the imperative."""
    words = re.findall(r"[\w'`<>.()-]+|:", text)
    first = words[0].strip("`.,;").lower() if words else ""
    second = words[1].lower() if len(words) > 1 else ""
    if first in VERBS_OR_NOUNS:
        if first in WITH_PREPOSITION and second in PREPOSITIONS:
            return True
        if first in WITH_CLAUSE and second in ("that", "which"):
            return True
        return bool(second) and second not in NOT_AN_OBJECT
    return first in VERBS


def files(root: Path = ROOT) -> list[str]:
    """List every file whose prose is checked, relative to the checkout."""
    pages = [*(root / name for name in DOCUMENTS), *sorted((root / "docs").rglob("*.md"))]
    modules = sorted((root / "src" / "vitrina").rglob("*.py"))
    scripts = [path for path in sorted((root / "scripts").glob("*.py")) if path.name != Path(__file__).name]
    configuration = [path for pattern in CONFIGURATION for path in sorted(root.glob(pattern)) if path.is_file()]
    return [path.relative_to(root).as_posix() for path in [*pages, *modules, *scripts, *configuration]]


def words_of(file: str, root: Path = ROOT) -> list[Place]:
    """Find the words of the list in one file, except where their use is correct."""
    text = (root / file).read_text(encoding="utf-8")
    if file.endswith(".py"):
        prose = prose_of_module(text)
    else:
        prose = prose_of_page(text) if file.endswith(".md") else enumerate(text.splitlines(), start=1)
    return [Place(file, line, word.lower(), said) for line, said, word in found_in(prose)]


def found_in(prose: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str, str]]:
    """Find the words of the list in lines of prose; a line is shown as it stands."""
    for line, said in prose:
        correct = [match.span() for match in CORRECT.finditer(said)]
        for match in PATTERN.finditer(said):
            if not any(start <= match.start() and match.end() <= end for start, end in correct):
                yield line, " ".join(said.split())[:160], match[0]


def prose_of_page(text: str) -> Iterator[tuple[int, str]]:
    """Read a page without its code, its link targets and the names in backquotes."""
    for pattern in (FENCED, INLINE, TARGET):
        text = pattern.sub(lambda match: "\n" * match[0].count("\n"), text)
    yield from enumerate(text.splitlines(), start=1)


def prose_of_module(text: str) -> Iterator[tuple[int, str]]:
    """Read the comments of a module, and its strings of three words or more: docstrings, messages, help texts."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], QUOTED.sub(" x ", token.string)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _is_prose(node.value):
            for number, line in enumerate(QUOTED.sub(" x ", node.value).splitlines()):
                yield node.lineno + number, line


def _is_prose(text: str) -> bool:
    return len(text.split()) > 2 and not SQL.match(text)


def openings(package: Path = PACKAGE, root: Path = ROOT) -> Iterator[Opening]:
    """Read the docstring of every function and class that has one."""
    for path in sorted(package.rglob("*.py")):
        file = path.relative_to(root).as_posix()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                text = ast.get_docstring(node)
                if text:
                    yield Opening(file, node.lineno, text)


def imperative_percent(found: Iterable[Opening]) -> float:
    """Compute the share of docstrings that begin with a verb in the imperative."""
    judged = [opening.is_imperative for opening in found]
    return 100 * sum(judged) / len(judged) if judged else 100.0


def directory_of(file: str) -> str:
    """Name the directory that a file is counted under: two levels below the checkout, three below `src`."""
    parts = file.split("/")[:-1]
    return "/".join(parts[:3] if parts[:1] == ["src"] else parts[:2]) or "."


def figures(places: Iterable[Place], found: Iterable[Opening]) -> Iterator[str]:
    """Format the table: words and docstrings of each directory, then of all."""
    words, docstrings = Counter(directory_of(place.file) for place in places), list(found)
    by_directory: dict[str, list[Opening]] = {}
    for opening in docstrings:
        by_directory.setdefault(directory_of(opening.file), []).append(opening)
    yield f"{'words':>7}  {'docstrings':>10}  {'with a verb':>11}  directory"
    for name in sorted(words.keys() | by_directory.keys()):
        theirs = by_directory.get(name, [])
        share = f"{imperative_percent(theirs):.0f} %" if theirs else ""
        yield f"{words[name]:>7,}  {len(theirs) or '':>10}  {share:>11}  {name}"
    share = f"{imperative_percent(docstrings):.1f} %"
    yield f"{words.total():>7,}  {len(docstrings):>10,}  {share:>11}  all (wanted: 0 words, > {WANTED_PERCENT} %)"


def main() -> None:
    """Print what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", help="files and directories; without any: all")
    parser.add_argument("--files", action="store_true", help="list offending files by their number of words")
    parser.add_argument("--where", action="store_true", help="list every place")
    parser.add_argument("--openings", action="store_true", help="list docstrings that do not begin with a verb")
    asked = parser.parse_args()
    under = tuple(path.rstrip("/") for path in asked.paths)
    places = [place for file in files() if _is_under(file, under) for place in words_of(file)]
    docstrings = [opening for opening in openings() if _is_under(opening.file, under)]
    if asked.files:
        counted = Counter(place.file for place in places).most_common()
        lines: Iterable[object] = (f"{count:>5}  {file}" for file, count in counted)
    elif asked.where:
        lines = places
    elif asked.openings:
        lines = (opening for opening in docstrings if not opening.is_imperative)
    else:
        by_word = Counter(place.word for place in places).most_common()
        lines = [*figures(places, docstrings), "", ", ".join(f"{word} {count}" for word, count in by_word)]
    sys.stdout.writelines(f"{line}\n" for line in lines)


def _is_under(file: str, under: tuple[str, ...]) -> bool:
    return not under or any(file == path or file.startswith(f"{path}/") for path in under)


if __name__ == "__main__":
    main()
