"""Hold one file per migration, in the order of their numbers."""
