"""Elasticsearch 8 and 9 and OpenSearch 2 and 3 as a target, by one code path."""
