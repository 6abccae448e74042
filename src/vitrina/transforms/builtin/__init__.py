"""Register the steps that ship with Vitrina; importing this package is enough."""

from vitrina.transforms.builtin import columns, demo, documents, privacy, reference, rows, stamps, text

__all__ = ["columns", "demo", "documents", "privacy", "reference", "rows", "stamps", "text"]
