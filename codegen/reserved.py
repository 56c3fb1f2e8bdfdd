"""Names that an emitted function cannot have: they are no identifiers of C++, would clash at link, or would hide a
declaration of a header."""

import re
from functools import cache
from pathlib import Path

from .errors import check

_PREFIXES = ("_", "cuda", "cu_", "nv_", "tilewright_", "pthread_", "sigev_", "si_", "sa_", "st_")
"""Beginnings of names that belong to the implementation of C, to POSIX, CUDA and tilewright."""
_PATTERNS = re.compile(
    r"[Cc][Uu][A-Z]\w*|cu(?:blas|fft|rand|solver|sparse|tensor)\w*"  # CUDA's driver and libraries
    r"|(?:PRI|SCN)\w+|[A-Z]+_\w+"  # formats of numbers, constants that end in small letters such as M_PIf
    r"|atomic\w+|(?:tex|surf)[1-3]D\w*"
    r"|(?:make_)?(?:u?(?:char|short|int|long|longlong)|float|double)[1-4]\w*"  # vectors
    r"|(?:d|f|f32x?|f64x?)(?:add|div|fma|mul|sqrt|sub)"  # C23's arithmetic of a narrower type
    r"|(?:is|to)\w+_l"
    r"|fm(?:ax|in)(?:imum)?(?:_?mag)?(?:_?num)?|(?:be|le)(?:16|32|64)toh|hto(?:be|le)(?:16|32|64)"
)
"""Names that come in families."""

_BLAS = re.compile(
    r"(?:cblas|lapacke?|magma|mkl|openblas)_\w+|(?:cblas_|lapacke_)?xerbla(?:_array)?_?"
    r"|i[sdcz]a(?:max|min)_?|(?:s|d|sc|dz)(?:asum|nrm2)_?|(?:[sd]|ds|sds)dot_?|[cz]dot[cu]_?"
    r"|(?:[sdcz]|cs|zd)(?:axpy|axpby|copy|rot|rotg|rotm|rotmg|scal|swap)_?"
    r"|[sdcz](?:ge|gb|he|hb|hp|sy|sb|sp|tr|tb|tp)(?:mv|sv|r2?|rc|ru)_?"
    r"|[sdcz](?:ge|he|sy|tr)(?:mm|mm3m|mmt|r2?k|sm)_?|[sdcz]gemm_(?:batch|batch_strided|compute|pack)_?"
    r"|[sdcz](?:bd|di|gb|ge|gg|gt|hb|he|hg|hp|hs|la|op|or|pb|po|pp|pt|sb|sp|st|sy|tb|tg|tp|tr|tz|un|up)"
    r"(?:sv|svx|sv_rook|trf|trf2|tri|tri2|trs|con|rfs|equ|ev|evd|evr|evx|vd?|vx|svd|sdd|svj|ls|lsd|lss|lsx|lsy|qrf"
    r"|qrt|qp3|lqf|qlf|rqf|hrd|hr|hd|trd|brd|gst|gv|gvd|gvx|sqr|eqr|edc|ein|exc|sen|sna|syl|bal|bak|bs|gqr|glq|gbr"
    r"|ghr|gtr|mqr|mlq|mbr|mhr|mtr)_?|[sdcz]g[eg]esx?_?"
    r"|[sdcz]la(?:mch|ng[ebt]|nsy|nst|nhe|ntr|cpy|set|scl|swp|rf[bgt]?|rtg|rnv|pmt|uum|ssq)_?|lsame_?|ilaenv_?|ilaver_?"
    r"|[sdcz][io]mat(?:copy|add)_?|[sdcz]gemmtr_?|[sd]cabs1_?"
)
"""Routines of BLAS, CBLAS and LAPACK, also as Fortran names them. In a program that links such a library too, the order
of linking would decide which function is called."""
_PORTS = frozenset(f"{port}{number}" for port in ("com", "lpt") for number in range(10))
"""Names of ports on Windows, in small letters: no file can have such a name, in small or capital letters."""


@cache
def _words() -> dict[str, frozenset[str]]:
    """The words of reserved.toml, group by group."""
    import tomllib  # needed only to emit files

    groups = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
    return {group: frozenset(words.split()) for group, words in groups.items()}


def refuse(name: str) -> None:
    """Raise ConfigError for a name that is no identifier of C, C++ and CUDA with at most 64 letters, or that C, the C
    library, BLAS, CUDA, CMake or an operating system uses."""
    is_identifier = name.isascii() and name.isidentifier() and len(name) <= 64
    check(is_identifier, f"name must match [A-Za-z_][A-Za-z0-9_]{{0,63}}, got {name!r}")
    words = _words()
    check(name not in words["keywords"], f"name must not be a word of C++, got {name!r}")
    lower = name.lower()
    remedy = f"a program may link to it too; add your project's prefix, such as my_{name}"
    check(not _BLAS.fullmatch(lower), f"name must not be a routine of BLAS, CBLAS or LAPACK, got {name!r}: {remedy}")
    check(any(map(str.islower, name)), f"name must have a small letter: names in capitals are macros, got {name!r}")
    is_reserved = (
        not words["math"].isdisjoint((name, name.removesuffix("f"), name.removesuffix("l")))
        or any(name in words[group] for group in ("c", "posix", "cuda", "macros", "headers", "targets"))
        or _PATTERNS.fullmatch(name)
        or lower.startswith(_PREFIXES)
        or lower in words["devices"] | words["successes"] | _PORTS
    )
    check(not is_reserved, f"name must not be one of C, the C library, CUDA, CMake or a system's devices, got {name!r}")
