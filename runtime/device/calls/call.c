/* The products of one plan from Python: Call(...)(a, b, out, alpha, beta), and with groups their offsets last.
 *
 * A Call makes the usual products itself: of aligned arrays on the current GPU, into an `out` that overlaps none of
 * them, while no graph is captured. It passes all other calls on to the plan.
 */

enum {         /* what a Call keeps */
    PLAN,      /* makes the products that are not usual */
    TRACKS,    /* of the plan: tells whether autograd has to record a product; None where it never has */
    CURRENT,   /* gives the number of the current GPU */
    INDEX,     /* the arrays' GPU */
    STREAM,    /* gives the current stream of a GPU */
    CAPTURING, /* tells whether a stream is captured */
    POINTER,   /* gives the address of an array */
    USED,      /* is told of each product that was put on a stream */
    WROTE,     /* is told of each `out` that was written; None where nobody watches */
    HELD,      /* tells whether this thread holds the lock of the launches, in a call that a handler interrupted */
    ACQUIRE,   /* acquires that lock; None where launches need none */
    RELEASE,   /* releases it */
    ADDRESSES, /* the rest is the Program's */
    MAPS,
    CONSTANTS,
    STEPS,
    CALL_KEEPS,
};

enum { A, B, C, ALPHA, BETA, GIVEN, OFFSETS = GIVEN, MOST_VALUES = 256 }; /* numbers of values are bytes */

#define LEAST 0x1p-149 /* the smallest positive float */

typedef struct {
    Head head;
    /* Bytes from an address to the end, and bits that must be 0 in it, for A, B, C and the offsets of groups. */
    unsigned long long span[OFFSETS + 1], mask[OFFSETS + 1];
} Call;

/* Number of arguments of a call: with offsets, unless those of the plan have no bytes. */
static Py_ssize_t arguments_of(const Call *self) { return self->span[OFFSETS] ? OFFSETS + 1 : GIVEN; }

/* Whether an argument is an array. */
static int is_array(Py_ssize_t number) { return number != ALPHA && number != BETA; }

/* Whether the result of a call equals `wanted`; -1 with an exception, also of the call. Releases the result. */
static int gives(PyObject *given, PyObject *wanted)
{
    int same = given ? PyObject_RichCompareBool(given, wanted, Py_EQ) : -1;
    Py_XDECREF(given);
    return same;
}

/* Carries out a Program under its lock. `values` begin with the `arguments` of the call. -1 with an exception. */
static int carried_out(PyObject *const *kept, PyObject *stream, PyObject **values, Py_ssize_t arguments)
{
    PyObject *own = NULL, *maps = kept[MAPS], *constants = kept[CONSTANTS], *steps = kept[STEPS];
    PyObject *asked[] = {stream, Py_False}, *passed[MOST_SLOTS + 1] = {stream};
    Py_ssize_t count = arguments, mapped = 0;
    int result = -1;
    if (kept[ADDRESSES] != Py_None && !(own = PyObject_Vectorcall(kept[ADDRESSES], asked, 2, NULL)))
        return -1;
    for (Py_ssize_t i = 0; own && i < PyTuple_GET_SIZE(own); i++)
        values[count++] = PyTuple_GET_ITEM(own, i);
    for (; mapped < PyTuple_GET_SIZE(maps); mapped++) {
        PyObject *map = PyTuple_GET_ITEM(maps, mapped); /* the number of an address, and Maps */
        PyObject *address = values[PyLong_AsLong(PyTuple_GET_ITEM(map, 0))];
        if (!(values[count++] = PyObject_GetItem(PyTuple_GET_ITEM(map, 1), address)))
            goto end;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(constants); i++)
        values[count + i] = PyTuple_GET_ITEM(constants, i);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(steps); i++) {
        PyObject *step = PyTuple_GET_ITEM(steps, i), *picks = PyTuple_GET_ITEM(step, 1); /* a launch, and bytes */
        Py_ssize_t size = PyBytes_GET_SIZE(picks);
        for (Py_ssize_t j = 0; j < size; j++)
            passed[j + 1] = values[(unsigned char)PyBytes_AS_STRING(picks)[j]];
        if (told(PyTuple_GET_ITEM(step, 0), passed, (size_t)size + 1))
            goto end;
    }
    result = 0;
end:
    while (mapped--)
        Py_DECREF(values[arguments + (own ? PyTuple_GET_SIZE(own) : 0) + mapped]);
    Py_XDECREF(own);
    return result;
}

/* Does what `usual` does, on a stream. */
static int put_on(const Call *self, PyObject *stream, PyObject *const *given)
{
    PyObject *const *kept = self->head.kept, *values[MOST_VALUES] = {[ALPHA] = given[ALPHA], [BETA] = given[BETA]};
    unsigned long long at[OFFSETS + 1], end_c;
    Py_ssize_t count = arguments_of(self);
    int result = -1, as_usual = 1, locked = kept[ACQUIRE] != Py_None, held = 0;
    for (Py_ssize_t i = A; i < count; i++) {
        if (!is_array(i))
            continue;
        if (!(values[i] = PyObject_CallOneArg(kept[POINTER], given[i]))) {
            if (PyErr_ExceptionMatches(PyExc_RuntimeError)) {
                PyErr_Clear(); /* by torch, for a tensor without storage: the plan names it */
                result = 0;
            }
            goto end;
        }
        at[i] = PyLong_AsUnsignedLongLong(values[i]);
        if (at[i] == ULLONG_MAX && PyErr_Occurred())
            goto end;
        as_usual &= !(at[i] & self->mask[i]) && (at[i] || !self->span[i]);
    }
    end_c = at[C] + self->span[C];
    for (Py_ssize_t i = A; i < count; i++)
        as_usual &= i == C || !is_array(i) || !(at[i] < end_c && at[C] < at[i] + self->span[i]);
    if (!as_usual)
        result = 0;
    if (as_usual && locked && (held = gives(PyObject_CallNoArgs(kept[HELD]), Py_True)))
        result = held < 0 ? -1 : 0; /* the plan raises the error */
    if (!as_usual || held || (locked && told(kept[ACQUIRE], NULL, 0)))
        goto end;
    result = carried_out(kept, stream, values, count);
    if (locked) {
        PyObject *type, *error, *trace;
        PyErr_Fetch(&type, &error, &trace);
        told(kept[RELEASE], NULL, 0);
        PyErr_Restore(type, error, trace);
    }
    if (!result)
        result = told(kept[USED], NULL, 0) || (kept[WROTE] != Py_None && told(kept[WROTE], &given[C], 1)) ? -1 : 1;
end:
    for (Py_ssize_t i = A; i < count; i++)
        if (is_array(i))
            Py_XDECREF(values[i]);
    return result;
}

/* 1 where the product was put on the stream, 0 where the plan has to make it, -1 with an exception. */
static int usual(const Call *self, PyObject *const *given)
{
    PyObject *const *kept = self->head.kept;
    if (given[C] == Py_None || !PyFloat_CheckExact(given[ALPHA]) || !PyFloat_CheckExact(given[BETA]))
        return 0;
    double alpha = PyFloat_AS_DOUBLE(given[ALPHA]), beta = PyFloat_AS_DOUBLE(given[BETA]);
    if ((-LEAST < alpha && alpha < LEAST) || (-LEAST < beta && beta < LEAST && beta != 0))
        return 0;
    int result = gives(PyObject_CallNoArgs(kept[CURRENT]), kept[INDEX]);
    if (result <= 0)
        return result;
    PyObject *stream = PyObject_CallOneArg(kept[STREAM], kept[INDEX]);
    if (!stream)
        return -1;
    result = gives(PyObject_CallOneArg(kept[CAPTURING], stream), Py_False);
    if (result > 0)
        result = put_on(self, stream, given);
    Py_DECREF(stream);
    return result;
}

static PyObject *call_call(PyObject *object, PyObject *const *given, size_t flags, PyObject *names)
{
    Call *self = (Call *)object;
    if (names || PyVectorcall_NARGS(flags) != arguments_of(self))
        return PyErr_Format(PyExc_TypeError, "this plan takes %zd arguments", arguments_of(self));
    int result = usual(self, given);
    if (result > 0)
        return Py_NewRef(given[C]);
    return result ? NULL : PyObject_Vectorcall(self->head.kept[PLAN], given, (size_t)arguments_of(self), NULL);
}

/* Call(kept, spans, masks, bytes of the offsets) */
static PyObject *call_new(PyTypeObject *type, PyObject *given, PyObject *Py_UNUSED(named))
{
    PyObject *kept;
    unsigned long long span[OFFSETS + 1] = {0}, mask[OFFSETS + 1] = {0};
    if (!PyArg_ParseTuple(given, "O!(KKK)(KKK)K", &PyTuple_Type, &kept, &span[A], &span[B], &span[C], &mask[A],
                          &mask[B], &mask[C], &span[OFFSETS]))
        return NULL;
    if (PyTuple_GET_SIZE(kept) != CALL_KEEPS)
        return PyErr_Format(PyExc_ValueError, "a Call keeps %d objects", CALL_KEEPS);
    Call *self = (Call *)type->tp_alloc(type, 0);
    if (!self)
        return NULL;
    self->head.vectorcall = call_call;
    for (int i = 0; i < CALL_KEEPS; i++)
        self->head.kept[i] = Py_NewRef(PyTuple_GET_ITEM(kept, i));
    memcpy(self->span, span, sizeof span);
    memcpy(self->mask, mask, sizeof mask);
    return (PyObject *)self;
}
