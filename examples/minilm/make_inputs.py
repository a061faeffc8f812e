#!/usr/bin/env python3
"""Turn the demo's sentences into the model's inputs: python make_inputs.py VOCAB.txt INPUTS.npz"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from wordpiece import WordPiece

SENTENCES = [
    "A cat is sleeping on the sofa.",
    "The kitten naps on the couch.",
    "He parked his car in front of the house.",
    "She left the vehicle by the front door.",
    "Tensor parallelism cuts one model over many devices.",
    "A neural network is split across several GPUs.",
]

if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    inputs = WordPiece(Path(sys.argv[1])).batch(SENTENCES)
    np.savez(sys.argv[2], **inputs)
    print(f"{sys.argv[2]}: {len(SENTENCES)} sentences of up to {inputs['input_ids'].shape[1]} tokens")
