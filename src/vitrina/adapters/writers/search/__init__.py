"""Writing to Elasticsearch 8 and 9 and OpenSearch 2 and 3, by one code path."""
