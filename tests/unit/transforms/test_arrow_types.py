"""Tables in natural types, of every type that a source may have."""

from vitrina.ports.schema import Column
from vitrina.transforms import arrow_types, call


def test_a_table_without_rows_has_its_columns_whatever_their_types_are() -> None:
    kinds = ["uuid", "uuid[]", "numeric(38,2)[]", "timestamp with time zone", "jsonb", "interval[]"]
    schema = arrow_types.schema_of([Column(kind, kind) for kind in kinds])
    made = arrow_types.no_rows(schema)
    assert (made.num_rows, made.schema) == (0, schema)
    assert call.one_batch(made).schema == schema
