"""Load content.films into analytics_dlt.films, replaced or merged, inside dlt's own environment."""

import os
import sys

import dlt  # type: ignore[import-not-found]
from dlt.sources.sql_database import sql_table  # type: ignore[import-not-found]

disposition = sys.argv[1]
films = sql_table(
    os.environ["SOURCE_URL"].replace("postgresql://", "postgresql+psycopg2://"),
    table="films",
    schema="content",
    backend="pyarrow",
    chunk_size=100_000,
    reflection_level="full_with_precision",
)
films.apply_hints(
    primary_key="id",
    write_disposition={"disposition": "merge", "strategy": "upsert"} if disposition == "merge" else "replace",
)
pipeline = dlt.pipeline(
    f"bench_{disposition}",
    destination=dlt.destinations.postgres(os.environ["SOURCE_URL"]),
    dataset_name="analytics_dlt",
)
pipeline.run(films, loader_file_format="csv")
