"""The text of tokens as they come, and stop texts."""

from __future__ import annotations

import pytest

from relayc.generation import GenerationError, Tokenizer
from relayc.generation.text import StopFinder, TextStream


class Bytes:
    """A tokenizer of bytes."""

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, ids: list[int], skip_special_tokens: bool = False) -> str:
        return bytes(ids).decode(errors="replace")


def test_a_piece_ends_with_a_whole_character():
    text, tokenizer = "aé€😀z", Tokenizer(Bytes())
    stream = TextStream(tokenizer.decode)
    pieces = [stream.push(token) for token in tokenizer.encode(text)]
    assert [piece for piece in pieces if piece] == list(text) and stream.rest() == ""
    stream = TextStream(tokenizer.decode)
    assert [stream.push(token) for token in "€".encode()[:2]] == ["", ""] and stream.rest() == "\ufffd"


@pytest.mark.parametrize(
    ("pieces", "shown", "stopped"),
    [
        (["ab", "cd"], ["ab", "cd"], False),
        (["a<", "b"], ["a", "<b"], False),
        (["a<e", "nd>b"], ["a", ""], True),
        (["x<end>y"], ["x"], True),
        (["ab", "##"], ["ab", ""], True),
        (["a#"], ["a"], False),
    ],
)
def test_the_beginning_of_a_stop_text_is_withheld(pieces, shown, stopped):
    finder = StopFinder(["<end>", "##"])
    found = [finder.push(piece) for piece in pieces]
    assert [text for text, _ in found] == shown and found[-1][1] == stopped


def test_what_was_withheld_is_text_after_all():
    finder = StopFinder(["<end>"])
    assert finder.push("a<en") == ("a", False) and finder.rest() == "<en" and finder.rest() == ""


def test_a_tokenizer_is_read_from_its_file(tmp_path):
    tokenizers = pytest.importorskip("tokenizers", reason="pip install 'relayc[generation]'")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<unk>": 0, "a": 1, "b": 2}, unk_token="<unk>"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    words.save(str(tmp_path / "tokenizer.json"))
    for found in (Tokenizer.load(None, tmp_path), Tokenizer.load(tmp_path, None), Tokenizer.load(words, None)):
        assert found is not None and found.encode("b a b") == [2, 1, 2] and found.decode([1, 2]) == "a b"
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(GenerationError, match=r"tokenizer\.json is no tokenizer"):
        Tokenizer.load(None, tmp_path)
    assert Tokenizer.load(None, tmp_path / "none") is None
