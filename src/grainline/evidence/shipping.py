"""Makes what ships of a calibration: prices and, beside them, the samples that they were fitted to.

    python -m grainline.evidence.shipping CALIBRATION NAME "shipped: measured on ..."

CALIBRATION is a file of `grainline calibrate -o`. Prices start from the reference machine, so that they do not depend
on what was shipped before.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

from grainline.evidence.fitting import Raw, fitted
from grainline.evidence.records import canonical, read_json, write_atomically, write_compressed
from grainline.plan.machine import REFERENCE, SHIPPED_FOLDER, Machine, machine_text


def shipped(raw: Raw, origin: str) -> Machine:
    """The machine that ships. What a virtual machine says of the cache that it shares with others is not believed."""
    return replace(fitted(raw, REFERENCE), origin=origin, shared_bytes=REFERENCE.shared_bytes)


def samples_of(name: str) -> Raw:
    """The samples beside the prices of that name."""
    found: Raw = read_json(SHIPPED_FOLDER / f"{name}.samples.json.gz")
    return found


def ship(calibration: Path, name: str, origin: str) -> None:
    raw: Raw = json.loads(calibration.read_text())["raw"]
    write_compressed(SHIPPED_FOLDER / f"{name}.samples.json.gz", canonical(raw))
    write_atomically(SHIPPED_FOLDER / f"{name}.json", machine_text(shipped(raw, origin)).encode())


if __name__ == "__main__":
    ship(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
