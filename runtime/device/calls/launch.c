/* The driver's launch from Python: Launch(...)(stream, *values), one kernel on one grid.
 *
 * launcher.py compiles launch.c, call.c, trees.c and module.c as one unit with the system's compiler; where that fails,
 * Plan, DriverLaunch and Trees do the same in Python.
 *
 * Objects do not change once they are made, and arguments lie on the stack, so that no call waits for another one, with
 * or without a global lock in Python. That lock is released while the driver works: the driver waits while a stream's
 * queue is full, perhaps for a function of the user's that needs the lock.
 */

#include <Python.h>
#include <limits.h>
#include <stddef.h>
#include <string.h>
#include <structmember.h>

enum {
    MOST_KEPT = 16, /* objects that a Launch or a Call keeps */
    SLOT_BYTES = 64, /* an argument begins at a multiple of this, which keeps every type aligned */
    MOST_SLOTS = 64, /* 4 KB, as every driver takes */
    MAP_BYTES = 128, /* of a CUtensorMap */
    PDL = 6,         /* CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION */
    NO_CONTEXT = 201, /* CUDA_ERROR_INVALID_CONTEXT */
};

/* CUlaunchAttribute and CUlaunchConfig of cuda.h, which need not be installed. */
typedef struct {
    int id, pad, value;
    char rest[60];
} Attribute;

typedef struct {
    unsigned grid[3], block[3], smem_bytes;
    void *stream;
    const Attribute *attributes;
    unsigned count;
} Config;

_Static_assert(sizeof(Attribute) == 72 && offsetof(Attribute, value) == 8, "not as in cuda.h");
_Static_assert(offsetof(Config, stream) == 32 && offsetof(Config, count) == 48, "not as in cuda.h");

typedef int (*LaunchFunction)(const Config *, void *function, void **arguments, void **extra);

/* The head that both types begin with. */
typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *kept[MOST_KEPT];
} Head;

/* Calls something for its effect. -1 with an exception. */
static int told(PyObject *callable, PyObject *const *given, size_t count)
{
    PyObject *done = PyObject_Vectorcall(callable, given, count, NULL);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

enum {      /* what a Launch keeps */
    ENTER,  /* makes the context the thread's */
    FAILED, /* gives the exception for a status */
};

typedef struct {
    Head head;
    LaunchFunction launch;
    void *function; /* a CUfunction */
    Config config;  /* all but the stream */
    Attribute attribute;
    Py_ssize_t count;
    char codes[MOST_SLOTS + 1];
} Launch;

/* Writes an argument in the type of its code. -1 with an exception for a value of another type. */
static int put(char code, PyObject *value, void *to)
{
    if (code == 'Q') {
        unsigned long long *address = to;
        *address = PyLong_AsUnsignedLongLong(value);
    } else if (code == 'i' || code == 'I') {
        unsigned *bits = to;
        long long number = PyLong_AsLongLong(value);
        *bits = (unsigned)number;
        if (number != (code == 'i' ? (int)number : (long long)*bits))
            PyErr_Format(PyExc_OverflowError, "%lld does not fit code %c", number, code);
    } else if (code == 'f') {
        float *single = to;
        *single = (float)PyFloat_AsDouble(value); /* infinite past its range */
    } else if (code == 'd') {
        double *number = to;
        *number = PyFloat_AsDouble(value);
    } else if (PyBytes_Check(value) && PyBytes_GET_SIZE(value) == MAP_BYTES) {
        memcpy(to, PyBytes_AS_STRING(value), MAP_BYTES);
    } else {
        PyErr_Format(PyExc_TypeError, "a tensor map is %d bytes", MAP_BYTES);
    }
    return PyErr_Occurred() ? -1 : 0;
}

static PyObject *launch_call(PyObject *object, PyObject *const *given, size_t flags, PyObject *names)
{
    Launch *self = (Launch *)object;
    if (names || PyVectorcall_NARGS(flags) != self->count + 1)
        return PyErr_Format(PyExc_TypeError, "a launch takes a stream and %zd arguments", self->count);
    Config config = self->config;
    config.stream = PyLong_AsVoidPtr(given[0]);
    if (!config.stream && PyErr_Occurred())
        return NULL;
    _Alignas(SLOT_BYTES) unsigned char slots[MOST_SLOTS][SLOT_BYTES], (*slot)[SLOT_BYTES] = slots;
    void *arguments[MOST_SLOTS];
    for (Py_ssize_t i = 0; i < self->count; i++) {
        arguments[i] = slot;
        if (put(self->codes[i], given[i + 1], *slot))
            return NULL;
        slot += self->codes[i] == 'm' ? MAP_BYTES / SLOT_BYTES : 1;
    }
    int status;
    for (int entered = 0;; entered = 1) {
        Py_BEGIN_ALLOW_THREADS
        status = self->launch(&config, self->function, arguments, NULL);
        Py_END_ALLOW_THREADS
        if (status != NO_CONTEXT || entered)
            break;
        if (told(self->head.kept[ENTER], NULL, 0)) /* the first call of a thread */
            return NULL;
    }
    if (!status)
        Py_RETURN_NONE;
    PyObject *error = PyObject_CallFunction(self->head.kept[FAILED], "i", status);
    if (error)
        PyErr_SetObject((PyObject *)Py_TYPE(error), error);
    Py_XDECREF(error);
    return NULL;
}

/* Launch(address, function, grid, block, smem_bytes, codes, pdl, enter, failed): `address` is that of cuLaunchKernelEx,
 * `codes` are those of ParameterBlock. */
static PyObject *launch_new(PyTypeObject *type, PyObject *given, PyObject *Py_UNUSED(named))
{
    unsigned long long address, function;
    Config config = {0};
    unsigned *grid = config.grid, *block = config.block;
    const char *codes;
    int pdl, slots = 0;
    PyObject *enter, *failed;
    if (!PyArg_ParseTuple(given, "KK(III)(III)IspOO", &address, &function, &grid[0], &grid[1], &grid[2], &block[0],
                          &block[1], &block[2], &config.smem_bytes, &codes, &pdl, &enter, &failed))
        return NULL;
    for (const char *code = codes; *code; code++) {
        slots += *code == 'm' ? MAP_BYTES / SLOT_BYTES : 1;
        if (!strchr("QiIfdm", *code) || slots > MOST_SLOTS)
            return PyErr_Format(PyExc_ValueError, "no launch takes arguments %s", codes);
    }
    Launch *self = (Launch *)type->tp_alloc(type, 0);
    if (!self)
        return NULL;
    self->head.vectorcall = launch_call;
    self->head.kept[ENTER] = Py_NewRef(enter);
    self->head.kept[FAILED] = Py_NewRef(failed);
    self->launch = (LaunchFunction)(uintptr_t)address;
    self->function = (void *)(uintptr_t)function;
    self->attribute = (Attribute){.id = PDL, .value = 1};
    self->config = config;
    self->config.attributes = &self->attribute;
    self->config.count = (unsigned)pdl;
    self->count = (Py_ssize_t)strlen(codes);
    strcpy(self->codes, codes);
    return (PyObject *)self;
}
