"""Configs as text and back."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tilewright.codegen.config import Config
from tilewright.codegen.errors import ConfigError

WORDS = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,15}", fullmatch=True)
VALUES = st.integers(0, 999_999) | WORDS


@given(WORDS, st.lists(st.tuples(WORDS, VALUES), max_size=6))
def test_text_is_read_back(family: str, values: list[tuple[str, int | str]]) -> None:
    config = Config(family, tuple(values))
    assert Config.parse(str(config)) == config


@given(st.text())
def test_any_text_is_a_config_or_a_config_error(text: str) -> None:
    try:
        config = Config.parse(text)
    except ConfigError:
        return
    assert Config.parse(str(config)) == config


def test_blanks_and_a_missing_tail_are_allowed() -> None:
    assert Config.parse(" tiled: unroll = 4 , edge=pad ") == Config("tiled", (("unroll", 4), ("edge", "pad")))
    assert Config.parse("naive") == Config("naive", ())


@pytest.mark.parametrize("text", ["", ":", "tiled:unroll", "tiled:=4", "tiled:unroll=", "tiled:unroll=-1", "a b:c=1"])
def test_malformed_text_is_a_config_error(text: str) -> None:
    with pytest.raises(ConfigError):
        Config.parse(text)


@pytest.mark.parametrize("value", [-1, 10**6, 1.0, True, None, "", "a-b", "x;y", "a" * 65, '"', "\n"])
def test_value_that_is_neither_number_nor_word_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match="unroll must be a number or a word"):
        Config("tiled", (("unroll", value),))


def test_values_are_found_by_name() -> None:
    config = Config.parse("tiled:unroll=4,edge=pad")
    assert config["edge"] == config.word("edge") == "pad"
    assert config.number("unroll") == 4
    with pytest.raises(KeyError):
        config["skew"]
    with pytest.raises(ConfigError, match="edge must be a number, got 'pad'"):
        config.number("edge")
