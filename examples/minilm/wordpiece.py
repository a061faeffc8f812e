"""Text to token ids as BERT's uncased models want them: lower case, words and punctuation, then the longest pieces.

The package `tokenizers` does the same and much more, and brings a network client with it; for one vocabulary and
English sentences these few lines are enough, and their ids are the same.
"""

from __future__ import annotations

import unicodedata
from pathlib import Path

import numpy as np
import numpy.typing as npt

LONGEST_WORD = 100
"""Characters; a longer word is unknown."""


class WordPiece:
    """A vocabulary, one piece a line; a piece that continues a word begins with '##'."""

    def __init__(self, vocabulary: Path) -> None:
        lines = vocabulary.read_text(encoding="utf-8").splitlines()
        self.ids = {piece: number for number, piece in enumerate(lines)}

    def encode(self, sentence: str) -> list[int]:
        """The ids of one sentence, between [CLS] and [SEP]."""
        pieces = [piece for word in words(sentence) for piece in self.pieces(word)]
        return [self.ids[piece] for piece in ("[CLS]", *pieces, "[SEP]")]

    def pieces(self, word: str) -> list[str]:
        """Cut a word into the longest pieces of the vocabulary, from left to right; ["[UNK]"] where that fails."""
        if len(word) > LONGEST_WORD:
            return ["[UNK]"]
        found: list[str] = []
        start = 0
        while start < len(word):
            mark = "##" if start else ""
            ends = range(len(word), start, -1)
            end = next((end for end in ends if mark + word[start:end] in self.ids), None)
            if end is None:
                return ["[UNK]"]
            found.append(mark + word[start:end])
            start = end
        return found

    def batch(self, sentences: list[str]) -> dict[str, npt.NDArray[np.int64]]:
        """The three inputs of the model for some sentences, each [sentences, longest]; short ones end in padding."""
        encoded = [self.encode(sentence) for sentence in sentences]
        shape = (len(encoded), max(map(len, encoded)))
        ids, mask = np.full(shape, self.ids["[PAD]"], np.int64), np.zeros(shape, np.int64)
        for row, numbers in enumerate(encoded):
            ids[row, : len(numbers)] = numbers
            mask[row, : len(numbers)] = 1
        return {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros(shape, np.int64)}


def words(sentence: str) -> list[str]:
    """Lower case without accents, split at blanks; each punctuation mark and each CJK character stands alone."""
    text = unicodedata.normalize("NFD", sentence.lower())
    spaced = "".join(spelled(character) for character in text)
    return spaced.split()


def spelled(character: str) -> str:
    """The character, spaced where it is a word of its own; nothing for an accent or a control character."""
    kind = unicodedata.category(character)
    if character in "\t\n\r" or kind.startswith("Z"):
        return " "
    if kind in ("Mn", "Cc", "Cf") or character == "\ufffd":
        return ""
    symbol = character.isascii() and character.isprintable() and not character.isalnum()
    alone = symbol or kind.startswith("P") or unicodedata.name(character, "").startswith("CJK UNIFIED IDEOGRAPH")
    return f" {character} " if alone else character
