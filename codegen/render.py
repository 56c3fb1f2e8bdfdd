"""From problem, config and arch to CUDA text."""

import hashlib
import re

from .arch import Arch
from .config import Config, Value
from .environment import environment, tidy
from .errors import ConfigError, check
from .families import COMMON, FAMILIES, Family, complete, family_of, require
from .family import Parameter
from .problem import DType, Problem
from .source import PACK_THREADS, PACK_TILE, KernelSource

__all__ = ["kernel_name", "parse_kernel_name", "render"]

_DIGEST = "@digest@"


def kernel_name(config: Config, dtype: DType, trans: str) -> str:
    """The name of a kernel: family, dtype, transposes and every parameter, `gemm_tiled_f32_nn_tw16_ebounds_s0_u8`.
    Those that are silent are left out where they have their default, and are letters alone where they are on or off.
    """
    family = family_of(config)
    told = (each for each in family.parameters if not each.silent or config[each.name] != each.default)
    codes = (each.code if _switch(each) else f"{each.code}{config[each.name]}" for each in told)
    return "_".join(("gemm", family.name, dtype.code, trans, *codes))


def parse_kernel_name(name: str) -> tuple[Config, DType, str]:
    """What `kernel_name` was called with. Raises ConfigError for a name that it never gives."""
    for family in FAMILIES.values():
        match = re.fullmatch(_name_pattern(family), name)
        if match:
            told = [(each, text) for each, text in zip(family.parameters, match.groups()[2:]) if text is not None]
            named = tuple((each.name, 1 if _switch(each) else _value(text, each.choices)) for each, text in told)
            return complete(Config(family.name, named)), DType.parse(match[1]), match[2]
    raise ConfigError(f"not the name of a tilewright kernel: {name!r}")


def _name_pattern(family: Family) -> str:
    return "_".join(("gemm", family.name, "(f32|f64)", "([nt][nt])")) + "".join(map(_code_pattern, family.parameters))


def _code_pattern(parameter: Parameter) -> str:
    if _switch(parameter):
        return f"(_{parameter.code})?"
    code = f"_{parameter.code}({'|'.join(map(str, parameter.choices))})"
    return f"(?:{code})?" if parameter.silent else code


def _switch(parameter: Parameter) -> bool:
    """Whether a parameter is on or off, and told only where it is on."""
    return parameter.silent and parameter.choices == (0, 1)


def _value(text: str, choices: tuple[Value, ...]) -> Value:
    return next(choice for choice in choices if str(choice) == text)


def render(problem: Problem, config: Config, arch: Arch) -> KernelSource:
    """The CUDA C++ of one variant, and how it is launched for this problem.

    The text depends on dtype, transposes, config and arch, not on m, n and k. Raises ConfigError for a config
    that is unknown or breaks a constraint; nothing is rendered then.
    """
    config = complete(config)
    require(problem, config, arch)
    family = family_of(config)
    name = kernel_name(config, problem.dtype, problem.trans)
    launch = family.launch(problem, config)
    padded = config["edge"] == "pad"
    tile_m, tile_n, tile_k = family.tile(config)
    text = tidy(
        environment()
        .get_template(family.template)
        .render(
            name=name,
            digest=_DIGEST,
            family=family,
            config=config,
            dtype=problem.dtype,
            trans=problem.trans,
            launch=launch,
            packs=family.packs(config),
            pack_tile=PACK_TILE,
            pack_threads=PACK_THREADS,
            tile=(tile_m, tile_n, tile_k),
            checks=[(rule.sentence(config), rule.check) for rule in (*family.constraints, *COMMON) if rule.check],
            value=config.__getitem__,
        )
    )
    check(_DIGEST in text, f"{family.template} has no digest in its banner", ConfigError)
    code = text.replace(_DIGEST, hashlib.sha256(text.encode()).hexdigest()[:16])
    return KernelSource(
        name=name,
        code=code,
        launch=launch,
        template=family.template,
        early=family.early(config),
        frame=f"{name}_frame" if padded else None,
        packs=family.packs(config),
        multiples=family.multiples(config) if padded else (1, 1, 1),
        alignment=family.alignment(config),
        boxes=family.boxes(problem, config),
        workspace_bytes=family.workspace_bytes(problem, config),
    )
