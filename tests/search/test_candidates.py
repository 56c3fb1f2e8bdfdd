"""Space files, and the candidates that a search gets from them."""

import os
import random
import re
from importlib import resources
from pathlib import Path

import pytest
from search_spaces import H200, searched
from tilewright import configs
from tilewright.codegen.config import Config
from tilewright.codegen.errors import ConfigError, ShapeError
from tilewright.codegen.families import families, parse
from tilewright.codegen.legality import serves
from tilewright.codegen.problem import Problem
from tilewright.tuner.choose.forecast import Forecast
from tilewright.tuner.choose.shortlist import shortlist
from tilewright.tuner.recording.points import config_of, space_of
from tilewright.tuner.search.candidates import candidates, read_spaces
from tilewright.tuner.search.neighbours import neighbours
from tilewright.tuner.search.sampler import Listed


def test_every_family_has_a_space() -> None:
    assert {choices.family for choices in read_spaces()} == set(families())


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("family = 'nave'", "family must be one of naive"),
        ("family = 'naive'", "needs a table"),
        ("family = 'naive'\n[parameters]\nblock_q = [1]", "block_q"),
        ("family = 'naive'\n[parameters]\nblock_m = [3]", "block_m must be one of"),
        ("family = 'naive'\n[parameters]\nblock_m = 8", "block_m must be a list"),
        ("family = ", "mine.toml"),
        ("family = 5", "family must be a name, got 5"),
        ("family = ['naive']", "family must be a name, got"),
        ("family = 'naive'\nparameters = 5", "needs a table"),
        ("family = 'naive'\n[parameters]\nblock_m = [[8]]", "block_m must be one of"),
        ("family = 'naive'\n[parameters]\nblock_m = [{a = 1}]", "block_m must be one of"),
        ("family = 'naive'\n[parameters]\nblock_m = [1" + "0" * 5000 + "]", "mine.toml"),
        ("x = " + "[" * 5000, "mine.toml"),
        ("# \ufffd".encode() + b"\xff", "mine.toml"),
    ],
)
def test_space_files_are_checked(tmp_path: Path, text: str | bytes, complaint: str) -> None:
    (tmp_path / "mine.toml").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError, match=complaint) as caught:
        read_spaces(tmp_path)
    assert str(caught.value).startswith(f"space {tmp_path}/mine.toml: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["folder", "pipe", "zeros"])
def test_a_path_that_is_no_space_file_is_named(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "mine.toml"
    {"folder": path.mkdir, "pipe": lambda: os.mkfifo(path), "zeros": lambda: path.symlink_to("/dev/zero")}[kind]()
    with pytest.raises(ConfigError, match=r"cannot read the space .*mine.toml: not a regular file"):
        read_spaces(tmp_path)


def test_a_value_that_is_listed_twice_counts_once(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("family = 'naive'\n[parameters]\nblock_m = [8, 8, 16]\n")
    (choices,) = read_spaces(tmp_path)
    assert choices.parameters == (("block_m", (8, 16)),)


@pytest.mark.parametrize(("shape", "dtype"), [("16x4096x512", "float"), ("4096x4096x64", "double"), ("3000", "double")])
def test_points_and_configs_stand_for_each_other(shape: str, dtype: str) -> None:
    problem = Problem.parse(shape, dtype)
    configs = searched(problem, H200)
    space = space_of(configs)
    assert len(set(configs)) == len(configs) == len(space) == len(set(space.points))
    variants = Listed(space, configs)
    for place in random.Random(1).sample(range(len(configs)), 300):
        config, point = configs[place], space.points[place]
        values = dict(space.values(point))
        assert config_of(values) == config
        assert variants.variant_of(variants.params_of(config)) is config
        assert values["family"] == config.family
        for name, value in config.values:
            assert name in ("mode", "parts") or values[name] == value
        assert serves(config, problem, H200)


def test_decompositions_are_three_numbers() -> None:
    for text, shares in (
        ("dmma:64x64x16", (1, 0, 1)),
        ("dmma:64x64x16,split_k=4", (4, 0, 1)),
        ("dmma:64x64x16,stream_k=2", (1, 2, 1)),
        ("dmma:64x64x16,persistent=4", (1, 0, 4)),
    ):
        config = parse(text)
        space = space_of((config, parse("tiled:16")))
        values = dict(space.values(space.points[0]))
        assert config_of(values) == config
        assert tuple(values[name] for name in ("split_k", "stream_k", "persistent")) == shares
        assert not {"mode", "parts"} & set(values)
    (split,) = (each for each in space.dimensions if each.name == "split_k")
    assert split.choices == ("absent", 1)


def test_a_small_family_is_listed_whole_and_a_large_one_near_the_shortlist() -> None:
    problem = Problem.parse("1000x520x3000")
    likely = [choice.config for choice in shortlist(problem, H200, (), 20)]
    by_family: dict[str, set[Config]] = {}
    for config in candidates(Forecast(problem, H200), read_spaces(), likely).configs:
        by_family.setdefault(config.family, set()).add(config)
    assert set(by_family) == {"naive", "tiled", "simt", "skinny"}
    assert len(by_family["naive"]) == 300
    simt = [config for config in likely if config.family == "simt"]
    (space,) = (choices for choices in read_spaces() if choices.family == "simt")
    values = space.on(H200)
    inside = [c for c in simt if all(v in values.get(n, (v,)) for n, v in c.typed.items())]
    assert inside
    assert set(inside) <= by_family["simt"]
    assert set(neighbours(inside[0], Forecast(problem, H200), values)) <= by_family["simt"]
    assert len(by_family["simt"]) < 5000
    assert all(v in values.get(n, (v,)) for c in by_family["simt"] for n, v in c.typed.items())


def test_a_large_space_of_the_user_is_searched_near_its_own_values(tmp_path: Path) -> None:
    text = (resources.files(configs) / "spaces" / "simt.toml").read_text()
    (tmp_path / "simt.toml").write_text(re.sub("block_m = .*", "block_m = [48]", text))
    problem = Problem.parse("1000x520x3000")
    result = candidates(Forecast(problem, H200), read_spaces(tmp_path), [parse("simt:64x128x16")]).configs
    assert {config.get("block_m") for config in result} == {48}
    assert len(result) > 50


def test_further_configs_are_candidates_even_outside_the_spaces(tmp_path: Path) -> None:
    (tmp_path / "tiled.toml").write_text("family = 'tiled'\n[parameters]\ntile_width = [8]\n")
    forecast, other = Forecast(Problem.parse("512"), H200), parse("simt:16x16x16,thread=2x2,lanes_m=8,fragments=single")
    spaces = read_spaces(tmp_path)
    assert other not in candidates(forecast, spaces, [other]).configs
    result = candidates(forecast, spaces, (), (other, parse("tiled:8")))
    assert [str(config) for config in result.configs] == ["tiled:8", str(other)]


def test_a_space_without_a_config_that_serves_is_an_error_with_reasons(tmp_path: Path) -> None:
    (tmp_path / "dmma.toml").write_text("family = 'dmma'\n[parameters]\nblock_m = [64, 128]\n")
    with pytest.raises(ShapeError, match="no config serves 512x512x512 float nn on sm_90a; required: the tensor cores"):
        candidates(Forecast(Problem.parse("512"), H200), read_spaces(tmp_path))
