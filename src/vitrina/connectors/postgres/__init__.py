"""PostgreSQL as a source and as a target: queries, cursors, stages, merges."""
