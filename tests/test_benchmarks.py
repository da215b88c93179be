"""The GPU benchmark where there is no GPU: it says so, and ends with a status of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("program", ["benchmarks.gpu", "benchmarks.gpu_peak"])
def test_without_a_gpu_it_says_why_and_measures_nothing(program):
    done = subprocess.run([sys.executable, "-m", program], cwd=ROOT, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("nothing measured: there is no CUDA device: ") and not done.stdout
