"""All generators: importing this registers them."""

from __future__ import annotations

import tests.fuzz.arithmetic
import tests.fuzz.classical
import tests.fuzz.flow
import tests.fuzz.images
import tests.fuzz.indexing
import tests.fuzz.microsoft
import tests.fuzz.networks
import tests.fuzz.products
import tests.fuzz.quantised
import tests.fuzz.reductions
import tests.fuzz.spectral
import tests.fuzz.structure
import tests.fuzz.text  # noqa: F401

__all__: list[str] = []
