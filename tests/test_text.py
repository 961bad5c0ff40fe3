"""Host products of tokens: the parts join to what one call over the whole gives, however the stream is sliced."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ovsdk.models.slots import Request, Sampled
from ovsdk.models.text import BLOCK, BlockHashes, Detokenizer, StopStrings, Transcript, frame, likely

Decode = Callable[[Sequence[int]], str]


def byte_level(pieces: Sequence[bytes]) -> Decode:
    """Like the decoder of a byte-level BPE: token i is pieces[i], and a special token is b''."""
    return lambda ids: b"".join(pieces[i] for i in ids).decode("utf-8", "replace")


def word_level(ids: Sequence[int]) -> str:
    """Like sentencepiece: each token begins with a space, which a text does not begin with."""
    return "".join(f" w{i}" for i in ids).removeprefix(" ")


# Whole characters of one to four bytes, cut anywhere; pieces of characters that are never finished; special tokens.
CHARACTERS = st.text("aé€😀\ufffd\n", min_size=1, max_size=4).map(str.encode)
PIECES = st.lists(st.one_of(st.just(b""), CHARACTERS, st.binary(min_size=1, max_size=3)), min_size=1, max_size=20)


@st.composite
def cut_text(draw: st.DrawFn) -> list[bytes]:
    raw = draw(st.text("aé€😀", max_size=12)).encode()
    cuts = sorted(draw(st.sets(st.integers(0, len(raw)), max_size=8)) | {0, len(raw)})
    return [raw[a:b] for a, b in itertools.pairwise(cuts)] or [b""]


def deltas(decode: Decode, ids: Sequence[int]) -> list[str]:
    detokenizer = Detokenizer(decode)
    return [*(detokenizer.add(i) for i in ids), detokenizer.flush()]


# ---- detokeniser ----


@given(st.one_of(PIECES, cut_text()))
@example(["😀".encode()[:3], "😀".encode()[3:]])
@example([b"\xe2\x82", b"A"])  # an unfinished character, then one that does not continue it
@example([b""] * 40 + [b"a"])
def test_deltas_join_to_the_decoded_text_and_nothing_given_is_taken_back(pieces: list[bytes]) -> None:
    decode, ids = byte_level(pieces), range(len(pieces))
    parts = deltas(decode, ids)
    assert "".join(parts) == decode(ids)
    for n in range(len(ids) + 1):
        assert decode(ids).startswith("".join(parts[:n]))


@given(cut_text())
def test_valid_text_never_shows_a_replacement_character(pieces: list[bytes]) -> None:
    assert "\ufffd" not in "".join(deltas(byte_level(pieces), range(len(pieces)))[:-1])


@given(st.lists(st.integers(0, 9), max_size=20))
def test_words_keep_the_space_between_them(ids: list[int]) -> None:
    assert "".join(deltas(word_level, ids)) == word_level(ids)


def test_a_character_comes_with_its_last_byte_and_text_before_it_at_once() -> None:
    assert deltas(byte_level([b"a\xe2", b"\x82", b"\xac", b"b"]), range(4)) == ["a", "", "€", "b", ""]


def test_only_a_short_window_is_decoded() -> None:
    lengths: list[int] = []

    def decode(ids: Sequence[int]) -> str:
        lengths.append(len(ids))
        return "x" * len(ids)

    assert len("".join(deltas(decode, range(500)))) == 500
    assert max(lengths) <= 2


def test_special_tokens_do_not_pile_up() -> None:
    lengths: list[int] = []

    def decode(ids: Sequence[int]) -> str:
        lengths.append(len(ids))
        return ""

    assert deltas(decode, range(500)) == [""] * 501
    assert max(lengths) <= 2 * (BLOCK + 1)


# ---- stop strings ----


def cut_by_hand(text: str, stops: Sequence[str]) -> tuple[str, str | None]:
    """Character by character: at the first end of a stop string, the longest that ends there."""
    for end in range(len(text) + 1):
        met = [stop for stop in stops if text[:end].endswith(stop)]
        if met:
            found = max(met, key=len)
            return text[: end - len(found)], found
    return text, None


@given(st.lists(st.text("ab", max_size=4), max_size=12), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3))
@example(["abab"], ["babb", "ab"])
@example(["aab"], ["b", "ab"])
def test_a_text_is_cut_at_its_first_stop_string_however_it_is_sliced(slices: list[str], stops: list[str]) -> None:
    matcher = StopStrings(stops)
    given = [matcher.add(delta) for delta in slices]
    kept, found = cut_by_hand("".join(slices), stops)
    assert matcher.found == found
    assert "".join(given) + matcher.flush() == kept


@given(st.lists(st.text("ab", max_size=4), max_size=12), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3))
def test_only_what_may_begin_a_stop_string_is_held_back(slices: list[str], stops: list[str]) -> None:
    matcher, given_so_far, seen = StopStrings(stops), "", ""
    for delta in slices:
        given_so_far, seen = given_so_far + matcher.add(delta), seen + delta
        if matcher.found is None:
            held = seen[len(given_so_far) :]
            assert seen.startswith(given_so_far)
            assert not held or any(stop.startswith(held) and stop != held for stop in stops)


def test_without_stop_strings_text_passes_at_once() -> None:
    matcher = StopStrings(())
    assert [matcher.add("a"), matcher.add(""), matcher.add("bc"), matcher.flush()] == ["a", "", "bc", ""]
    assert matcher.found is None


# ---- hashes ----


@given(st.lists(st.integers(0, 2**31), max_size=5 * BLOCK), st.integers(0, 5 * BLOCK))
def test_hashes_do_not_depend_on_where_a_prompt_ends(tokens: list[int], cut: int) -> None:
    hashes = BlockHashes(tokens[:cut])
    for token in tokens[cut:]:
        hashes.add(token)
    assert hashes.hashes == BlockHashes(tokens).hashes
    assert len(hashes.hashes) == len(tokens) // BLOCK


@given(st.lists(st.integers(0, 3), min_size=3 * BLOCK, max_size=3 * BLOCK), st.integers(0, 3 * BLOCK - 1))
def test_a_changed_token_changes_its_block_and_all_after_it(tokens: list[int], place: int) -> None:
    changed = [*tokens[:place], tokens[place] + 1, *tokens[place + 1 :]]
    same = [a == b for a, b in zip(BlockHashes(tokens).hashes, BlockHashes(changed).hashes, strict=True)]
    assert same == [i < place // BLOCK for i in range(3)]


# ---- frames and transcripts ----

PIECES_OF_A_TEXT = (b"Hi", b" \xf0\x9f", b"\x98\x80", b" an", b"d END", b"!", b"")


def sampled(token: int) -> Sampled:
    return Sampled(token, -0.5, (token, 0), (-0.5, -1.5))


def transcribe(stop: Sequence[str], tokens: Sequence[int], reason: str) -> tuple[list[bool], dict[str, Any], list[dict[str, Any]]]:
    frames: list[str] = []
    request = Request("r", range(BLOCK - 1), stop=tuple(stop))
    transcript = Transcript(request, byte_level(PIECES_OF_A_TEXT), frames.append)
    met = [transcript.add(sampled(token)) for token in tokens]
    products = transcript.end(reason)
    return met, products, [json.loads(f.removeprefix("data: ").rstrip("\n")) for f in frames]


def test_a_transcript_joins_all_products() -> None:
    met, products, frames = transcribe((), range(7), "eos")
    assert met == [False] * 7
    assert products["text"] == "Hi 😀 and END!"
    assert products["blocks"] == tuple(BlockHashes([*range(BLOCK - 1), *range(7)]).hashes) != ()
    assert products["top"][4] == ((4, "d END", -0.5), (0, "Hi", -1.5))
    assert "".join(f["text"] for f in frames) == products["text"]
    assert [f["text"] for f in frames[:3]] == ["Hi", " ", "😀"]
    assert [f["index"] for f in frames[:-1]] == list(range(7))
    assert frames[1]["top"] == [[1, " \ufffd", -0.5], [0, "Hi", -1.5]]
    assert frames[-1] == {"id": "r", "tokens": 7, "text": "", "finish_reason": "eos", "blocks": list(products["blocks"])}


def test_a_stop_string_over_three_tokens_ends_the_text_and_is_not_in_it() -> None:
    met, products, frames = transcribe((" and END!", "never"), range(6), "stop")
    assert met == [False] * 5 + [True]
    assert products["text"] == "Hi 😀" == "".join(f["text"] for f in frames)
    assert frames[-1]["tokens"] == 6


def test_what_was_held_back_for_a_stop_string_comes_at_the_end() -> None:
    met, products, frames = transcribe((" and END?",), range(5), "length")
    assert met == [False] * 5
    assert products["text"] == "Hi 😀 and END"
    assert frames[-1]["text"] == " and END"


def test_an_unfinished_character_comes_at_the_end() -> None:
    _, products, _ = transcribe((), range(2), "length")
    assert products["text"] == "Hi \ufffd"


def test_a_frame_is_one_event_even_if_the_text_has_line_ends() -> None:
    event = frame({"text": "a\n\n€"})
    assert event == 'data: {"text":"a\\n\\n€"}\n\n'


def test_likely_tokens_keep_their_order() -> None:
    rows = likely(Sampled(1, -0.1, (1, 2), (-0.1, -2.0)), lambda ids: f"<{ids[0]}>")
    assert rows == ((1, "<1>", -0.1), (2, "<2>", -2.0))


# ---- the laws catch what is wrong ----


class Forgetful(Detokenizer):
    """Decodes every token alone."""

    def add(self, token: int) -> str:
        return self._decode([token])

    def flush(self) -> str:
        return ""


class Hasty(StopStrings):
    """Holds nothing back."""

    def _beginning_at_the_end_of(self, text: str) -> int:
        return 0


def test_a_detokeniser_that_keeps_nothing_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "Detokenizer", Forgetful)
    with pytest.raises(AssertionError):
        test_a_character_comes_with_its_last_byte_and_text_before_it_at_once()


def test_a_matcher_that_holds_nothing_back_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "StopStrings", Hasty)
    with pytest.raises(AssertionError):
        test_a_text_is_cut_at_its_first_stop_string_however_it_is_sliced.hypothesis.inner_test(["a", "b"], ["ab"])
