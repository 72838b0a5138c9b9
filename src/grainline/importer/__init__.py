"""ONNX -> Graph. `import_model` is the only entrance; one file per operator family holds the coverage tables."""

from grainline.importer.model import import_model

__all__ = ["import_model"]
