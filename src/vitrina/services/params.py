"""Validate params of a Python step against the JSON Schema that a live runner reported for it.

Only what is certainly wrong is refused here; the runner validates params with the model itself before each run. Unknown
keywords of the schema are ignored, and values that a model converts (`"5"` for 5) are accepted.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from vitrina.errors import FieldError
from vitrina.sentences import say

Schema = Mapping[str, Any]

_SHOWN_CHOICES = 12


def problems(params: Mapping[str, Any], schema: Schema, path: str, *, strict: bool) -> list[FieldError]:
    """List all errors, each with its path below `path`."""
    return list(_Judge(schema, strict=strict).judge(dict(params), schema, path))


class _Judge:
    def __init__(self, root: Schema, *, strict: bool) -> None:
        self._definitions: Schema = root.get("$defs", {})
        self._strict = strict

    def judge(self, value: Any, schema: Schema, path: str) -> Iterator[FieldError]:
        schema = self._resolved(schema)
        if "anyOf" in schema or "oneOf" in schema:
            yield from self._any_of(value, schema.get("anyOf") or schema["oneOf"], path)
        elif "enum" in schema or "const" in schema:
            yield from self._one_of(value, schema.get("enum", [schema.get("const")]), path)
        elif wrong := self._wrong_type(value, schema):
            yield FieldError(
                path, say("params.wrong_kind", field=_name(path), wanted=wrong, found=_kind(value)), "invalid_params"
            )
        elif isinstance(value, dict):
            yield from self._object(value, schema, path)
        elif isinstance(value, list):
            yield from self._array(value, schema, path)
        elif isinstance(value, str):
            yield from _length(len(value), schema, "Length", "characters", path)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield from _range(value, schema, path)

    def _resolved(self, schema: Schema) -> Schema:
        """Resolve the references of a schema; an unresolvable one allows anything."""
        for _ in range(10):
            if "$ref" not in schema:
                return schema
            schema = self._definitions.get(str(schema["$ref"]).rpartition("/")[2], {})
        return {}

    def _any_of(self, value: Any, choices: list[Schema], path: str) -> Iterator[FieldError]:
        found = [list(self.judge(value, choice, path)) for choice in choices]
        if not all(found):
            return
        # An error inside a choice is more precise than "matches no choice": the author meant one of them.
        inside = [errors for errors in found if all(error.path != path for error in errors)]
        if inside:
            yield from min(inside, key=len)
        elif len({error.message for errors in found for error in errors}) == 1:
            yield found[0][0]
        else:
            wanted = " or ".join(dict.fromkeys(_described(self._resolved(choice)) for choice in choices))
            yield FieldError(
                path, say("params.wrong_kind", field=_name(path), wanted=wanted, found=_kind(value)), "invalid_params"
            )

    def _one_of(self, value: Any, choices: list[Any], path: str) -> Iterator[FieldError]:
        if value not in choices:
            shown = ", ".join(map(repr, choices[:_SHOWN_CHOICES]))
            yield FieldError(path, say("params.not_one_of", field=_name(path), choices=shown), "invalid_params")

    def _wrong_type(self, value: Any, schema: Schema) -> str | None:
        wanted = str(schema.get("type"))
        if wanted not in _TYPES or "format" in schema:
            return None  # several types at once, or text that stands for something else
        fits = isinstance(value, _TYPES[wanted]) and not (isinstance(value, bool) and wanted in ("integer", "number"))
        converts = wanted in ("integer", "number", "boolean") and isinstance(value, str | int | float)
        return None if fits or (converts and not self._strict) else _described(schema)

    def _object(self, value: dict[str, Any], schema: Schema, path: str) -> Iterator[FieldError]:
        known: Schema = schema.get("properties", {})
        for name in schema.get("required", ()):
            if name not in value:
                yield FieldError(
                    f"{path}.{name}", say("params.missing", field=_name(path), name=name), "missing_params"
                )
        others = schema.get("additionalProperties", True)
        patterns = list(schema.get("patternProperties", {}).values())
        for name, item in value.items():
            if name in known:
                yield from self.judge(item, known[name], f"{path}.{name}")
            elif len(patterns) == 1:
                yield from self.judge(item, patterns[0], f"{path}.{name}")
            elif others is False:
                there_are = ", ".join(sorted(known)) or "none"
                yield FieldError(
                    f"{path}.{name}",
                    say("params.unknown", field=_name(path), name=name, known=there_are),
                    "unknown_params",
                )
            elif isinstance(others, Mapping):
                yield from self.judge(item, others, f"{path}.{name}")
        yield from _length(len(value), schema, "Properties", "entries", path)

    def _array(self, value: list[Any], schema: Schema, path: str) -> Iterator[FieldError]:
        for position, item in enumerate(value):
            yield from self.judge(item, schema.get("items", {}), f"{path}.{position}")
        yield from _length(len(value), schema, "Items", "items", path)


_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "object": (dict,),
    "array": (list,),
    "null": (type(None),),
}
_WORDS = {
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "object": "an object",
    "array": "a list",
    "null": "null",
}


def _described(schema: Schema) -> str:
    if "enum" in schema:
        return "one of " + ", ".join(map(repr, schema["enum"][:_SHOWN_CHOICES]))
    return _WORDS.get(str(schema.get("type")), "something else")


def _kind(value: Any) -> str:
    """Describe a value by its kind alone, because values of params may be secrets."""
    kinds = [name for name, types in _TYPES.items() if isinstance(value, types)]
    return _WORDS["boolean" if isinstance(value, bool) else kinds[0]] if kinds else type(value).__name__


def _name(path: str) -> str:
    """Shorten a path to start at `params`: the reader of the message knows what comes before it."""
    return path[path.index("params") :] if "params" in path else path


def _length(length: int, schema: Schema, word: str, unit: str, path: str) -> Iterator[FieldError]:
    least, most = schema.get(f"min{word}", 0), schema.get(f"max{word}", length)
    if length < least:
        yield FieldError(path, say("params.too_few", field=_name(path), least=least, unit=unit), "invalid_params")
    elif length > most:
        yield FieldError(
            path, say("params.too_many", field=_name(path), length=length, unit=unit, most=most), "invalid_params"
        )


def _range(value: float, schema: Schema, path: str) -> Iterator[FieldError]:
    if value < schema.get("minimum", value):
        yield FieldError(path, say("params.below", field=_name(path), least=schema["minimum"]), "invalid_params")
    elif value > schema.get("maximum", value):
        yield FieldError(path, say("params.above", field=_name(path), most=schema["maximum"]), "invalid_params")
    elif "exclusiveMinimum" in schema and value <= schema["exclusiveMinimum"]:
        yield FieldError(
            path, say("params.not_above", field=_name(path), least=schema["exclusiveMinimum"]), "invalid_params"
        )
    elif "exclusiveMaximum" in schema and value >= schema["exclusiveMaximum"]:
        yield FieldError(
            path, say("params.not_below", field=_name(path), most=schema["exclusiveMaximum"]), "invalid_params"
        )
