"""Random files over the options of one framework: what it reads is what we read, and what it reads of what we write.

differential.py FAMILY CASES [SEED]      FAMILY: hdf5 or tf, see options/__init__.py
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.insert(0, str(Path(__file__).parents[1]))

from options.common import report

if __name__ == "__main__":
    sys.exit(report(sys.argv[1], *map(int, sys.argv[2:])))
