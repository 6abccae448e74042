"""Everything that talks to the outside on behalf of a run: readers, transforms, writers."""
