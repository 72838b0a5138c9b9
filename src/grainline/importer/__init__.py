"""ONNX -> Graph. `model.import_model` is the only entrance; one file per operator family holds the coverage tables.

Nothing is imported here: a saved model's weights are read with `tensors` alone.
"""
