"""The plain form of a classic kernel: one file with a program around it, for a person who reads it."""

from .config import Config
from .emitted import Emitted, sealed
from .environment import rendered
from .errors import check, check_type
from .families import families
from .problem import Grade, Problem
from .reserved import refuse


def plain(problem: Problem, config: Config, name: str = "matmul") -> Emitted:
    """A kernel for C = A * B in one readable file, with a program that allocates with a pitch, times and checks it.

    Args:
        problem: the shape that the program multiplies by default, and the type. Where the tiles of the config divide
            it nothing is guarded, and the program takes no other sizes.
        config: a config of a family that has a plain form.
        name: name of the file, without its ending.

    Raises:
        ConfigError: a family without a plain form, transposes, a dimension of 0, or a name that is taken.
        ArgumentTypeError: arguments of other types.
    """
    check_type("problem", problem, Problem, "a Problem")
    check_type("config", config, Config, "a Config")
    check_type("name", name, str, "text")
    refuse(name)
    plain_families = " and ".join(family for family, kind in families().items() if kind.plain)
    check(bool(config.plain), f"{config.family} has no plain form (--plain); name a config of {plain_families}")
    check(problem.trans == "nn", f"a plain kernel takes A and B as they are, got trans {problem.trans}: leave it out")
    check(problem.accuracy is Grade.IEEE, f"a plain kernel is ieee, got accuracy {problem.accuracy}: leave it out")
    check(min(problem.m, problem.n, problem.k) > 0, f"a plain kernel's shape has sizes above 0, got {problem.shape}")
    filename = f"{name}.cu"
    command = f"tilewright emit --plain --shape {problem.shape} --dtype {problem.dtype.value} --name {name}"
    text = rendered(
        config.plain,
        filename=filename,
        config=config,
        problem=problem,
        edge=config.edge_of(problem),
        command=f'{command} --config "{config}"',
        digest="@file digest@",
    )
    return Emitted(((filename, sealed(text)),))
