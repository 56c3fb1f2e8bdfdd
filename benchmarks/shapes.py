"""The problems of the data set: the shapes of DeepBench, and shapes drawn at random by a seed."""

import math
import random
from collections.abc import Iterator, Sequence

from tilewright.codegen.problem import Grade, Problem

SEED = 20261123
MOST_STEPS = 4e10
"""Most multiply-adds of a drawn shape."""
FEWEST_STEPS, MIDDLE_STEPS = 1e9, 1e8
"""Fewest multiply-adds of a large shape, and of one of middle size."""
FEWEST_ELEMENTS = 1 << 16
"""Fewest elements of C of a drawn batch of small products."""
MOST_PRODUCTS, MOST_BATCH_BYTES, MOST_LARGE_BYTES = 10**6, 3e8, 3e9
"""Most products of a drawn batch, and most bytes in double of its operands and of those of a large batch."""
LARGE_SPREAD = 6
"""Most over fewest products of large batches of one shape."""
SMALL_SQUARES = (
    *(2, 6, 7, 9, 10, 11, 13, 14, 15, 18, 19, 20, 21, 22, 23, 25, 27, 28, 30, 31, 34, 36, 40, 41, 44, 47, 50, 52, 56),
    *(60, 63, 66, 72, 76, 80, 88, 97, 100, 104, 112, 120, 127),
)
"""Squares of the first batches of the data set."""
MORE_SQUARES = 29, 35, 38, 42, 45, 54, 58, 62, 70, 84, 92, 108, 116, 124
"""Squares of the batches that were added to it."""
LARGE_SQUARES = (
    *(2, 6, 7, 9, 11, 13, 14, 15, 18, 19, 21, 22, 23, 25, 27, 28, 30, 31, 34, 35, 36, 40, 41, 44, 47, 49, 50, 52, 56),
    *(60, 61, 62, 63, 66, 68, 72, 80, 88, 97, 100, 112, 120, 127),
)
"""Squares of large batches."""
TRANS, TRANS_WEIGHTS = ("nn", "nt", "tn"), (70, 15, 15)
"""Transposes of batches, and how often each is drawn."""
DEEPBENCH = (
    "1760x16x1760 1760x64x1760 1760x128x1760 1760x7000x1760 2048x32x2048 2048x128x2048 2048x7000x2048 2560x16x2560 "
    "2560x64x2560 2560x7000x2560 4096x32x4096 4096x128x4096 5124x9124x1760 35x8457x1760 5124x9124x2048 35x8457x2560 "
    "7680x16x2560 7680x64x2560 7680x128x2560 3072x16x1024 3072x64x1024 3072x128x1024 3072x7435x1024 7680x5481x2560 "
    "5124x700x2560 35x700x2560 35x1500x2048 5124x1500x2560 7680x1x2560 7680x2x2560 7680x4x2560 3072x1x1024 3072x4x1024 "
    "7680x1500x2560 6144x4x2048 512x1500x2816 1024x700x512 512x6000x2048 1024x6000x2816 512x16x512 1024x16x500000"
).split()
"""Shapes of the list of products that DeepBench publishes for training and inference."""


def problems(accuracy: Grade = Grade.IEEE) -> list[Problem]:
    """All problems of an accuracy, in an order whose every first part is a fair sample. Both types of a shape follow
    each other; problems that need not be `ieee` are in float alone."""
    dtypes = ("float", "double") if accuracy is Grade.IEEE else ("float",)
    shapes = [*_deepbench(random.Random(SEED)), *_small(random.Random(SEED + 5))]
    shapes += [*_unaligned(random.Random(SEED + 3)), *_narrow(random.Random(SEED + 4))]
    shapes += [*_quarter_hard(random.Random(SEED + 6)), *_all_kinds(random.Random(SEED + 7), 120)]
    shapes += _all_kinds(random.Random(SEED + 8), 320)
    shapes += _half_narrow(random.Random(SEED + 9), 420)
    shapes += _half_panels(random.Random(SEED + 10), 420)
    shapes += _panels_of_odd_k(random.Random(SEED + 11), 110)
    drawn = (Problem.parse(shape, dtype, trans, accuracy) for shape, trans in shapes for dtype in dtypes)
    return list(dict.fromkeys(drawn))  # a shape may be drawn twice


def batches() -> list[Problem]:
    """The batches of the data set, none of which `batches.py` measures: the first ones, then more, then large ones.
    Every first part of each of the three is a fair sample. Both types of a shape follow each other."""
    rng, aside = random.Random(SEED + 14), {each.shape for each in left_out()}
    more = [*_batches(rng, MORE_SQUARES, 44, 48, 50), *_large_batches(random.Random(SEED + 15), 40, 12, 20)]
    drawn = (
        Problem.parse(shape, dtype, trans, batch=batch)
        for shape, batch, trans in [*_first_batches(), *(each for each in more if each[0] not in aside)]
        for dtype in ("float", "double")
    )
    return list(dict.fromkeys(drawn))


def left_out() -> list[Problem]:
    """Ten batches of each type, drawn like those of the data set, which has none of their shapes."""
    rng = random.Random(SEED + 13)
    drawn = [*_batches(rng, (10, 20, 26, 46, 75), 8, 8, 6)]
    in_data_set = {shape for shape, _, _ in _first_batches()}
    shapes = [each for each in drawn if each[0] not in in_data_set]
    return [
        Problem.parse(shape, dtype, trans, batch=batch)
        for place, dtype in enumerate(("float", "double"))
        for shape, batch, trans in shapes[place:20:2]
    ]


def _first_batches() -> Iterator[tuple[str, int, str]]:
    """Shapes, numbers of products and transposes of the batches that the data set began with."""
    return _batches(random.Random(SEED + 12), SMALL_SQUARES, 32, 40, 28)


def _batches(
    rng: random.Random, squares: Sequence[int], small: int, few: int, programs: int
) -> Iterator[tuple[str, int, str]]:
    """Shapes, numbers of products and transposes: many small squares and rectangles, two or more products of any size,
    and long and narrow products as programs have them."""
    drawn = list[tuple[str, tuple[int, int]]]()
    for shape in (*(f"{n}x{n}x{n}" for n in squares), *_drawn(rng, small, (1, 128), (1, 128), (1, 128))):
        m, n, _ = map(int, shape.split("x"))
        drawn.append((shape, (max(2, FEWEST_ELEMENTS // (m * n)), MOST_PRODUCTS)))
    drawn += [(shape, (2, 256)) for shape in _drawn(rng, few, (8, 1024), (8, 1024), (8, 1024))]
    long, head, odd = (128, 2048), (32, 128), (1, 16)
    for sizes in ((long, long, head), (long, head, long), (head, long, long), (long, odd, long), (long, long, odd)):
        drawn += [(shape, (8, 512)) for shape in _drawn(rng, -(-programs // 5), *sizes)]
    rng.shuffle(drawn)
    for shape, (low, high) in drawn:
        one = Problem.parse(shape, "double")
        most = min(high, int(MOST_BATCH_BYTES / one.bytes), int(MOST_STEPS / one.flops))
        yield shape, _size(rng, low, most) if low < most else max(2, most), rng.choices(TRANS, TRANS_WEIGHTS)[0]


def _large_batches(rng: random.Random, small: int, few: int, programs: int) -> Iterator[tuple[str, int, str]]:
    """Shapes, numbers of products and transposes of batches of gigabytes: small squares and rectangles, products of any
    size, and long and narrow products."""
    shapes = [f"{n}x{n}x{n}" for n in LARGE_SQUARES]
    shapes += [*_drawn(rng, small, (1, 128), (1, 128), (1, 128)), *_drawn(rng, few, (8, 1024), (8, 1024), (8, 1024))]
    long, short = (128, 2048), (1, 128)
    for sizes in ((long, long, short), (long, short, long), (short, long, long), (long, short, short)):
        shapes += _drawn(rng, programs // 4, *sizes)
    rng.shuffle(shapes)
    for shape in shapes:
        one = Problem.parse(shape, "double")
        most = min(MOST_PRODUCTS, int(MOST_LARGE_BYTES / one.bytes), int(MOST_STEPS / one.flops))
        yield shape, max(2, _size(rng, most / LARGE_SPREAD, most)), rng.choices(TRANS, TRANS_WEIGHTS)[0]


def _deepbench(rng: random.Random) -> Iterator[tuple[str, str]]:
    """The shapes of DeepBench and others of all kinds, with transposes."""
    everything = (1, 16384)
    shapes = [*DEEPBENCH]
    shapes += _drawn(rng, 72, everything, everything, everything)
    shapes += _drawn(rng, 28, (64, 4096), (64, 4096), (64, 4096))
    shapes += ("x".join(str(2 * _size(rng, 16, 2048) + 1) for _ in range(3)) for _ in range(16))
    shapes += _drawn(rng, 12, (8, 256), (8, 256), (8192, 200_000))  # long k, small C
    shapes += _drawn(rng, 6, (8192, 100_000), (2, 128), (16, 2048))  # long and narrow C
    shapes += _drawn(rng, 6, (2, 128), (8192, 100_000), (16, 2048))
    shapes += _drawn(rng, 8, (1024, 12288), (1024, 12288), (8, 96))  # short k, large C
    rng.shuffle(shapes)
    return ((shape, rng.choices(("nn", "nt", "tn", "tt"), (46, 18, 18, 18))[0]) for shape in shapes)


def _small(rng: random.Random) -> Iterator[tuple[str, str]]:
    """Few elements of C with a long k, and many elements of C with at most four steps of k."""
    tiny, small = (1, 16), (1, 64)
    shapes = [*_drawn(rng, 16, tiny, tiny, (64, 16384)), *_drawn(rng, 8, small, small, (16, 4096))]
    shapes += _drawn(rng, 8, (256, 8192), (256, 8192), (1, 4))
    rng.shuffle(shapes)
    return ((shape, rng.choice(("nn", "nt", "tn", "tt"))) for shape in shapes)


def _unaligned(rng: random.Random) -> Iterator[tuple[str, str]]:
    """Large products, most of which have unaligned rows, and many elements of C with at most eight steps of k."""
    for shape in _drawn(rng, 24, (192, 8192), (192, 8192), (192, 16384), FEWEST_STEPS):
        yield shape, rng.choice(("nn", "nt", "tn", "tt"))
    for shape in _drawn(rng, 8, (512, 8192), (512, 8192), (1, 8)):
        yield shape, rng.choice(("nn", "nt", "tn", "tt"))


def _narrow(rng: random.Random) -> Iterator[tuple[str, str]]:
    """Narrow products, a large C with at most eight steps of k, and products of middle and large sizes."""
    narrow, wide = (1, 16), (64, 16384)
    shapes = [*_drawn(rng, 12, narrow, wide, wide), *_drawn(rng, 12, wide, narrow, wide)]
    shapes += [*_drawn(rng, 8, (256, 8192), (256, 8192), (1, 8)), *_drawn(rng, 16, *[(64, 8192)] * 3, MIDDLE_STEPS)]
    return ((shape, rng.choice(("nn", "nt", "tn", "tt"))) for shape in shapes)


def _quarter_hard(rng: random.Random) -> Iterator[tuple[str, str]]:
    """Three shapes of all kinds, then one of a hard kind with two pairs of transposes, in turn. Hard kinds are one to
    three steps of k, one to four rows or columns, a long k with some hundred rows or columns, and a large C with some
    steps of k."""
    everything, few, wide = (1, 16384), (1, 4), (64, 16384)
    shapes = _drawn(rng, 120, everything, everything, everything)
    hard = [*_drawn(rng, 16, (64, 8192), (64, 8192), (1, 3))]
    hard += [*_drawn(rng, 12, few, wide, wide), *_drawn(rng, 12, wide, few, wide)]
    hard += [*_drawn(rng, 14, (1000, 20_000), (96, 400), (4000, 20_000))]
    hard += [*_drawn(rng, 10, (96, 400), (1000, 20_000), (4000, 20_000))]
    hard += [*_drawn(rng, 16, (512, 8192), (512, 8192), (24, 96))]
    rng.shuffle(hard)  # half of them are used
    for one, two, three, four in zip(shapes, shapes, shapes, hard):
        for shape in one, two, three, four, four:
            yield shape, rng.choice(("nn", "nt", "tn", "tt"))


def _all_kinds(rng: random.Random, count: int) -> Iterator[tuple[str, str]]:
    """Shapes of all kinds, drawn like those of `untuned.py`."""
    for shape in _drawn(rng, count, *[(1, 16384)] * 3):
        yield shape, rng.choice(("nn", "nt", "tn", "tt"))


def _half_narrow(rng: random.Random, count: int) -> Iterator[tuple[str, str]]:
    """Shapes of all kinds in turn with long and narrow ones."""
    shapes, few, long = _drawn(rng, count, *[(1, 16384)] * 3), (1, 64), (512, 16384)
    tiny, wide = (1, 8), (64, 16384)
    third = count // 3
    narrow = [*_drawn(rng, third, few, long, (1, 2048)), *_drawn(rng, third, long, few, (1, 2048))]
    narrow += [*_drawn(rng, third // 2, tiny, wide, wide), *_drawn(rng, third // 2, wide, tiny, wide)]
    narrow += [*_drawn(rng, count - len(narrow), wide, wide, tiny)]
    rng.shuffle(narrow)
    for pair in zip(shapes, narrow):
        for shape in pair:
            yield shape, rng.choice(("nn", "nt", "tn", "tt"))


def _half_panels(rng: random.Random, count: int) -> Iterator[tuple[str, str]]:
    """Shapes of all kinds in turn with panels: up to 512 rows, columns or steps of k beside thousands."""
    shapes, short, long, deep = _drawn(rng, count, *[(1, 16384)] * 3), (16, 512), (1024, 16384), (64, 8192)
    third = count // 3
    panels = [*_drawn(rng, third, short, long, deep), *_drawn(rng, third, long, short, deep)]
    panels += _drawn(rng, count - len(panels), (512, 16384), (512, 16384), short)
    rng.shuffle(panels)
    for pair in zip(shapes, panels):
        for shape in pair:
            yield shape, rng.choice(("nn", "nt", "tn", "tt"))


def _panels_of_odd_k(rng: random.Random, count: int) -> Iterator[tuple[str, str]]:
    """Panels whose rows along k are copied in vectors of one or two elements."""
    short, long = (100, 700), (2000, 16384)
    for _ in range(count):
        rows, columns, k = _size(rng, *short), _size(rng, *long), _size(rng, 100, 1500)
        if rng.random() < 0.25:
            rows, columns = columns, rows
        yield f"{rows}x{columns}x{k if k % 4 else k + rng.randint(1, 3)}", rng.choice(("nt", "nt", "nn", "tt"))


def _size(rng: random.Random, low: float, high: float) -> int:
    """A log-uniform number."""
    return round(math.exp(rng.uniform(math.log(low), math.log(high))))


def _drawn(
    rng: random.Random, count: int, m: tuple[int, int], n: tuple[int, int], k: tuple[int, int], fewest: float = 0
) -> Iterator[str]:
    """Shapes within ranges of m, n and k, of at least `fewest` multiply-adds."""
    while count:
        sizes = _size(rng, *m), _size(rng, *n), _size(rng, *k)
        if fewest <= math.prod(sizes) <= MOST_STEPS:
            count -= 1
            yield "x".join(map(str, sizes))
