"""The problems of the data set: shapes of DeepBench, and shapes that are drawn by a seed."""

import math
import random
from collections.abc import Iterator, Sequence

from tilewright.codegen.problem import Grade, Problem

SEED = 20261123
MOST_STEPS = 4e10
"""Multiply-adds of a drawn shape at most."""
FEWEST_STEPS, MIDDLE_STEPS = 1e9, 1e8
"""And at least of one that is to be large, or of middle size."""
FEWEST_ELEMENTS = 1 << 16
"""Elements of C of a drawn batch of small products at least."""
MOST_PRODUCTS, MOST_BATCH_BYTES = 10**6, 3e8
"""Products of a drawn batch, and bytes of its operands in double, at most."""
SMALL_SQUARES = (
    *(2, 6, 7, 9, 10, 11, 13, 14, 15, 18, 19, 20, 21, 22, 23, 25, 27, 28, 30, 31, 34, 36, 40, 41, 44, 47, 50, 52, 56),
    *(60, 63, 66, 72, 76, 80, 88, 97, 100, 104, 112, 120, 127),
)
"""Squares in the data set of batches."""
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
    """All problems, in an order that is fair at every length: both types of a shape follow each other. In
    float alone where they need not be `ieee`."""
    dtypes = ("float", "double") if accuracy is Grade.IEEE else ("float",)
    shapes = [*_at_first(random.Random(SEED)), *_small(random.Random(SEED + 5))]
    shapes += [*_since_then(random.Random(SEED + 3)), *_last(random.Random(SEED + 4))]
    shapes += [*_twice_as_many(random.Random(SEED + 6)), *_any(random.Random(SEED + 7), 120)]
    shapes += _any(random.Random(SEED + 8), 320)
    shapes += _half_narrow(random.Random(SEED + 9), 420)
    shapes += _half_panels(random.Random(SEED + 10), 420)
    shapes += _panels_of_odd_k(random.Random(SEED + 11), 110)
    found = (Problem.parse(shape, dtype, trans, accuracy) for shape, trans in shapes for dtype in dtypes)
    return list(dict.fromkeys(found))  # a shape may be drawn twice


def batches() -> list[Problem]:
    """The batches of the data set, in an order that is fair at every length: both types of a shape follow each other.

    They are none of those that `batches.py` measures.
    """
    rng = random.Random(SEED + 12)
    found = (
        Problem.parse(shape, dtype, trans, batch=batch)
        for shape, batch, trans in _batches(rng, SMALL_SQUARES, 32, 40, 28)
        for dtype in ("float", "double")
    )
    return list(dict.fromkeys(found))


def left_out() -> list[Problem]:
    """Ten batches of each type that are drawn as those of the data set, and are none of them."""
    rng = random.Random(SEED + 13)
    drawn = [*_batches(rng, (10, 20, 26, 46, 75), 8, 8, 6)]
    known = {each.shape for each in batches()}
    shapes = [each for each in drawn if each[0] not in known]
    return [
        Problem.parse(shape, dtype, trans, batch=batch)
        for place, dtype in enumerate(("float", "double"))
        for shape, batch, trans in shapes[place:20:2]
    ]


def _batches(
    rng: random.Random, squares: Sequence[int], small: int, few: int, programs: int
) -> Iterator[tuple[str, int, str]]:
    """Shapes, numbers of products and transposes: squares and small rectangles whose C has some ten thousand elements
    and more, products of all sizes from two on, and long and narrow ones as programs have them."""
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


def _at_first(rng: random.Random) -> Iterator[tuple[str, str]]:
    """Shapes and transposes of all kinds."""
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
    """Few elements of C and some k, and hardly any k and many: of these a look-up took kernels that were up to three
    times as slow as it expected."""
    tiny, some = (1, 16), (1, 64)
    shapes = [*_drawn(rng, 16, tiny, tiny, (64, 16384)), *_drawn(rng, 8, some, some, (16, 4096))]
    shapes += _drawn(rng, 8, (256, 8192), (256, 8192), (1, 4))
    rng.shuffle(shapes)
    return ((shape, rng.choice(("nn", "nt", "tn", "tt"))) for shape in shapes)


def _since_then(rng: random.Random) -> Iterator[tuple[str, str]]:
    """Kinds that look-ups were worst at: large with rows that are not aligned, and hardly any k."""
    for shape in _drawn(rng, 24, (192, 8192), (192, 8192), (192, 16384), FEWEST_STEPS):
        yield shape, rng.choice(("nn", "nt", "tn", "tt"))
    for shape in _drawn(rng, 8, (512, 8192), (512, 8192), (1, 8)):
        yield shape, rng.choice(("nn", "nt", "tn", "tt"))


def _last(rng: random.Random) -> Iterator[tuple[str, str]]:
    """And again: narrow ones, and more with hardly any k or of middle and large sizes."""
    narrow, wide = (1, 16), (64, 16384)
    shapes = [*_drawn(rng, 12, narrow, wide, wide), *_drawn(rng, 12, wide, narrow, wide)]
    shapes += [*_drawn(rng, 8, (256, 8192), (256, 8192), (1, 8)), *_drawn(rng, 16, *[(64, 8192)] * 3, MIDDLE_STEPS)]
    return ((shape, rng.choice(("nn", "nt", "tn", "tt"))) for shape in shapes)


def _twice_as_many(rng: random.Random) -> Iterator[tuple[str, str]]:
    """Shapes of all kinds, and those that look-ups were worst at since: hardly any k, one to four rows or columns, a
    long k with some hundred columns, and a large C with some steps of k."""
    everything, few, wide = (1, 16384), (1, 4), (64, 16384)
    shapes = _drawn(rng, 120, everything, everything, everything)
    worst = [*_drawn(rng, 16, (64, 8192), (64, 8192), (1, 3))]
    worst += [*_drawn(rng, 12, few, wide, wide), *_drawn(rng, 12, wide, few, wide)]
    worst += [*_drawn(rng, 14, (1000, 20_000), (96, 400), (4000, 20_000))]
    worst += [*_drawn(rng, 10, (96, 400), (1000, 20_000), (4000, 20_000))]
    worst += [*_drawn(rng, 16, (512, 8192), (512, 8192), (24, 96))]
    rng.shuffle(worst)  # half of them are taken, each with two pairs of transposes
    for one, two, three, bad in zip(shapes, shapes, shapes, worst):  # some of both in any first part
        for shape in one, two, three, bad, bad:
            yield shape, rng.choice(("nn", "nt", "tn", "tt"))


def _any(rng: random.Random, count: int) -> Iterator[tuple[str, str]]:
    """As `untuned.py` draws those that it times."""
    for shape in _drawn(rng, count, *[(1, 16384)] * 3):
        yield shape, rng.choice(("nn", "nt", "tn", "tt"))


def _half_narrow(rng: random.Random, count: int) -> Iterator[tuple[str, str]]:
    """Shapes of all kinds, and in turn with them long and narrow ones, of which a look-up was worst at those with a
    row, a column or hardly any k."""
    shapes, few, long = _drawn(rng, count, *[(1, 16384)] * 3), (1, 64), (512, 16384)
    hardly, some = (1, 8), (64, 16384)
    third = count // 3
    narrow = [*_drawn(rng, third, few, long, (1, 2048)), *_drawn(rng, third, long, few, (1, 2048))]
    narrow += [*_drawn(rng, third // 2, hardly, some, some), *_drawn(rng, third // 2, some, hardly, some)]
    narrow += [*_drawn(rng, count - len(narrow), some, some, hardly)]
    rng.shuffle(narrow)
    for pair in zip(shapes, narrow):
        for shape in pair:
            yield shape, rng.choice(("nn", "nt", "tn", "tt"))


def _half_panels(rng: random.Random, count: int) -> Iterator[tuple[str, str]]:
    """Shapes of all kinds, and in turn with them panels: some rows or columns beside thousands, and a large C of some
    k. Of 141 random shapes a look-up was worst at these."""
    shapes, some, many, deep = _drawn(rng, count, *[(1, 16384)] * 3), (16, 512), (1024, 16384), (64, 8192)
    third = count // 3
    panels = [*_drawn(rng, third, some, many, deep), *_drawn(rng, third, many, some, deep)]
    panels += _drawn(rng, count - len(panels), (512, 16384), (512, 16384), some)
    rng.shuffle(panels)
    for pair in zip(shapes, panels):
        for shape in pair:
            yield shape, rng.choice(("nn", "nt", "tn", "tt"))


def _panels_of_odd_k(rng: random.Random, count: int) -> Iterator[tuple[str, str]]:
    """Panels whose rows along k are copied element by element, or two at a time: of 721 random products in float the
    two that were furthest behind cuBLAS are such."""
    some, many = (100, 700), (2000, 16384)
    for _ in range(count):
        rows, columns, k = _size(rng, *some), _size(rng, *many), _size(rng, 100, 1500)
        if rng.random() < 0.25:
            rows, columns = columns, rows
        yield f"{rows}x{columns}x{k if k % 4 else k + rng.randint(1, 3)}", rng.choice(("nt", "nt", "nn", "tt"))


def _size(rng: random.Random, low: float, high: float) -> int:
    return round(math.exp(rng.uniform(math.log(low), math.log(high))))


def _drawn(
    rng: random.Random, count: int, m: tuple[int, int], n: tuple[int, int], k: tuple[int, int], fewest: float = 0
) -> Iterator[str]:
    while count:
        sizes = _size(rng, *m), _size(rng, *n), _size(rng, *k)
        if fewest <= math.prod(sizes) <= MOST_STEPS:
            count -= 1
            yield "x".join(map(str, sizes))
