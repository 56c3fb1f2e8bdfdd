/* Gradient-boosted trees from Python, with the same bits as those of Trees in ranker.py. */

enum { TOGETHER = 32, MOST_FEATURES = 128, MOST_LEVELS = 8 }; /* TOGETHER rows at a time */

enum { COLUMNS, ROWS, QUESTIONS, BORDERS, LEAVES, FOUND, BUFFERS };

typedef float Eight __attribute__((vector_size(32)));
typedef int EightAnswers __attribute__((vector_size(32)));

_Static_assert(sizeof(Eight) == 8 * sizeof(float) && sizeof(int) == 4, "not eight of each");

#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
#define FOR_EACH_PROCESSOR __attribute__((target_clones("avx2", "default"))) /* the loader takes the right one */
#else
#define FOR_EACH_PROCESSOR
#endif
#define INLINE static inline __attribute__((always_inline))

static const struct {
    const char *codes; /* codes of Python's `struct` that elements may have */
    int bytes, dimensions, flags;
} wanted[BUFFERS] = {
    [COLUMNS] = {"f", 4, 2, PyBUF_SIMPLE},
    [ROWS] = {"ilq", sizeof(Py_ssize_t), 1, PyBUF_SIMPLE},
    [QUESTIONS] = {"il", 4, 2, PyBUF_SIMPLE},
    [BORDERS] = {"f", 4, 2, PyBUF_SIMPLE},
    [LEAVES] = {"il", 4, 2, PyBUF_SIMPLE},
    [FOUND] = {"d", 8, 1, PyBUF_WRITABLE},
};

/* The leaf to which a tree leads each of TOGETHER rows, whose features are `taken`. */
INLINE void led(const int *questions, const float *borders, Py_ssize_t levels, Eight (*taken)[TOGETHER / 8], int *leaf)
{
    EightAnswers first = {0}, second = {0}, third = {0}, fourth = {0}; /* an array would not be kept in registers */
    for (Py_ssize_t level = 0; level < levels; level++) {
        const Eight *asked = taken[questions[level]], border = borders[level] - (Eight){0};
        first += first - (asked[0] > border); /* an answer is 0 or -1 */
        second += second - (asked[1] > border);
        third += third - (asked[2] > border);
        fourth += fourth - (asked[3] > border);
    }
    EightAnswers leaves[TOGETHER / 8] = {first, second, third, fourth};
    memcpy(leaf, leaves, sizeof leaves);
}

/* Adds the leaves of all trees to the sums of these rows. */
INLINE void added_up(const Py_buffer *views, Eight (*taken)[TOGETHER / 8], int *sums)
{
    Py_ssize_t trees = views[QUESTIONS].shape[0], levels = views[QUESTIONS].shape[1], size = (Py_ssize_t)1 << levels;
    const int *questions = views[QUESTIONS].buf, *leaves = views[LEAVES].buf;
    const float *borders = views[BORDERS].buf;
    int leaf[TOGETHER], other[TOGETHER];
    for (Py_ssize_t tree = 0; tree < trees; tree += 2) { /* two at once, so that sums are written half as often */
        Py_ssize_t next = tree + 1 < trees ? tree + 1 : tree;
        const int *values = leaves + tree * size, *others = leaves + next * size;
        led(questions + tree * levels, borders + tree * levels, levels, taken, leaf);
        if (next == tree) {
            for (int i = 0; i < TOGETHER; i++)
                sums[i] += values[leaf[i]];
            return;
        }
        led(questions + next * levels, borders + next * levels, levels, taken, other);
        for (int i = 0; i < TOGETHER; i++)
            sums[i] += values[leaf[i]] + others[other[i]];
    }
}

/* Whether the buffers belong together and nothing in them points beyond another one. */
static int belong(const Py_buffer *views)
{
    Py_ssize_t features = views[COLUMNS].shape[0], trees = views[QUESTIONS].shape[0];
    Py_ssize_t levels = views[QUESTIONS].shape[1];
    if (features > MOST_FEATURES || levels > MOST_LEVELS || views[BORDERS].shape[0] != trees ||
        views[BORDERS].shape[1] != levels || views[LEAVES].shape[0] != trees ||
        views[LEAVES].shape[1] != (Py_ssize_t)1 << levels || views[FOUND].shape[0] != views[ROWS].shape[0])
        return 0;
    const int *questions = views[QUESTIONS].buf;
    const Py_ssize_t *rows = views[ROWS].buf;
    int inside = 1;
    for (Py_ssize_t i = 0; i < trees * levels; i++)
        inside &= 0 <= questions[i] && questions[i] < features;
    for (Py_ssize_t i = 0; i < views[ROWS].shape[0]; i++)
        inside &= 0 <= rows[i] && rows[i] < views[COLUMNS].shape[1];
    return inside;
}

FOR_EACH_PROCESSOR static void evaluate(const Py_buffer *views, double unit)
{
    Py_ssize_t count = views[ROWS].shape[0], features = views[COLUMNS].shape[0], across = views[COLUMNS].shape[1];
    const Py_ssize_t *rows = views[ROWS].buf;
    double *found = views[FOUND].buf;
    Eight taken[MOST_FEATURES][TOGETHER / 8];
    for (Py_ssize_t begin = 0; begin < count; begin += TOGETHER) {
        Py_ssize_t here = count - begin < TOGETHER ? count - begin : TOGETHER;
        const float *column = views[COLUMNS].buf;
        Py_ssize_t places[TOGETHER];
        int in_order = here == TOGETHER;
        for (Py_ssize_t i = 0; i < TOGETHER; i++) {
            places[i] = rows[begin + (i < here ? i : 0)];
            in_order &= places[i] == places[0] + i;
        }
        for (Py_ssize_t feature = 0; feature < features; feature++, column += across) {
            float values[TOGETHER];
            if (in_order) { /* as in a call for all rows */
                memcpy(taken[feature], column + *places, sizeof values);
                continue;
            }
            for (int i = 0; i < TOGETHER; i++)
                values[i] = column[places[i]];
            memcpy(taken[feature], values, sizeof values);
        }
        int sums[TOGETHER] = {0};
        added_up(views, taken, sums);
        for (Py_ssize_t i = 0; i < here; i++)
            found[begin + i] = sums[i] * unit;
    }
}

/* trees(columns, rows, questions, borders, leaves, found, unit): writes into `found` the sum of all trees, times
 * `unit`, for each of `rows`, places in the columns of features. A tree has a row of questions (features, the highest
 * bit of the leaf first), of borders and of leaves. ValueError where the buffers do not belong together. */
static PyObject *trees(PyObject *Py_UNUSED(module), PyObject *const *given, Py_ssize_t count)
{
    if (count != BUFFERS + 1)
        return PyErr_Format(PyExc_TypeError, "trees are %d buffers and a unit", BUFFERS);
    double unit = PyFloat_AsDouble(given[BUFFERS]);
    if (unit == -1 && PyErr_Occurred())
        return NULL;
    Py_buffer views[BUFFERS];
    int had = 0, good = 1;
    for (; good && had < BUFFERS; had++) {
        if (PyObject_GetBuffer(given[had], &views[had], PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | wanted[had].flags))
            break;
        const char *code = views[had].format ? views[had].format : "B";
        good = strlen(code) == 1 && strchr(wanted[had].codes, *code) && views[had].itemsize == wanted[had].bytes &&
               views[had].ndim == wanted[had].dimensions;
    }
    if (!PyErr_Occurred()) {
        if (good && belong(views))
            evaluate(views, unit);
        else
            PyErr_SetString(PyExc_ValueError, "no trees, rows and columns that belong together");
    }
    while (had--)
        PyBuffer_Release(&views[had]);
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}
