"""Check run events against the OpenLineage specification (2-0-2), as far as Vitrina uses it, by a JSON schema.

Written from the published specification. Facets that Vitrina does not send are left out, unknown ones are refused.
"""

from typing import Any

import jsonschema_rs

_URI = {"type": "string", "pattern": "^[a-z][a-z0-9+.-]*:.+"}


def _facet(name: str, required: list[str], /, **properties: Any) -> dict[str, Any]:
    pointer = rf"^https://openlineage\.io/spec/facets/\d+-\d+-\d+/{name}\.json#/\$defs/{name}$"
    return {
        "type": "object",
        "properties": {"_producer": _URI, "_schemaURL": {"type": "string", "pattern": pointer}, **properties},
        "required": ["_producer", "_schemaURL", *required],
        "additionalProperties": False,
    }


def _facets(**known: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": known, "additionalProperties": False}


_TEXT, _COUNT = {"type": "string"}, {"type": "integer", "minimum": 0}
_FIELD = {"type": "object", "properties": {"name": _TEXT, "type": _TEXT}, "required": ["name"]}
_SCHEMA = _facet("SchemaDatasetFacet", [], fields={"type": "array", "items": _FIELD})


_ASSERTION = {
    "type": "object",
    "properties": {"assertion": _TEXT, "success": {"type": "boolean"}, "column": _TEXT},
    "required": ["assertion", "success"],
    "additionalProperties": False,
}
_ASSERTIONS = _facet(
    "DataQualityAssertionsDatasetFacet", ["assertions"], assertions={"type": "array", "items": _ASSERTION}
)


def _dataset(**more: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "array",
        "items": {
            "type": "object",
            "properties": {
                "namespace": _TEXT,
                "name": _TEXT,
                "facets": _facets(schema=_SCHEMA, dataQualityAssertions=_ASSERTIONS),
                **more,
            },
            "required": ["namespace", "name"],
            "additionalProperties": False,
        },
    }


RUN_EVENT: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "properties": {
        "eventType": {"enum": ["START", "RUNNING", "COMPLETE", "ABORT", "FAIL", "OTHER"]},
        "eventTime": {"type": "string", "format": "date-time"},
        "producer": _URI,
        "schemaURL": {"const": "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent"},
        "run": {
            "type": "object",
            "properties": {
                "runId": {"type": "string", "format": "uuid"},
                "facets": _facets(
                    errorMessage=_facet(
                        "ErrorMessageRunFacet",
                        ["message", "programmingLanguage"],
                        message=_TEXT,
                        programmingLanguage=_TEXT,
                        stackTrace=_TEXT,
                    ),
                    processing_engine=_facet("ProcessingEngineRunFacet", ["version"], version=_TEXT, name=_TEXT),
                ),
            },
            "required": ["runId"],
            "additionalProperties": False,
        },
        "job": {
            "type": "object",
            "properties": {
                "namespace": _TEXT,
                "name": _TEXT,
                "facets": _facets(
                    documentation=_facet("DocumentationJobFacet", ["description"], description=_TEXT),
                    jobType=_facet(
                        "JobTypeJobFacet",
                        ["processingType", "integration"],
                        processingType={"enum": ["BATCH", "STREAMING", "SERVICE"]},
                        integration=_TEXT,
                        jobType=_TEXT,
                    ),
                    sql=_facet("SQLJobFacet", ["query"], query=_TEXT),
                ),
            },
            "required": ["namespace", "name"],
            "additionalProperties": False,
        },
        "inputs": _dataset(
            inputFacets=_facets(inputStatistics=_facet("InputStatisticsInputDatasetFacet", [], rowCount=_COUNT))
        ),
        "outputs": _dataset(
            outputFacets=_facets(
                outputStatistics=_facet("OutputStatisticsOutputDatasetFacet", ["rowCount"], rowCount=_COUNT)
            )
        ),
    },
    "required": ["eventTime", "producer", "schemaURL", "run", "job"],
    "additionalProperties": False,
}

_VALIDATOR = jsonschema_rs.Draft202012Validator(RUN_EVENT, validate_formats=True)


def check(event: dict[str, Any]) -> dict[str, Any]:
    """Return the event itself if it conforms to the specification."""
    _VALIDATOR.validate(event)
    return event
