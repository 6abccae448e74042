"""The steps that ship with Vitrina; importing this package registers them."""

from vitrina.transforms.builtin import columns, demo, documents, privacy, reference, rows, stamps, text

__all__ = ["columns", "demo", "documents", "privacy", "reference", "rows", "stamps", "text"]
