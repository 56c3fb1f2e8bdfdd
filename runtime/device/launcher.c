/* Calls from Python in C: what is left to do of a call whose layout was seen before, and the driver's launch.
 *
 * launcher.py compiles this with the system's compiler; where that fails, Plan and DriverLaunch do the same in Python.
 * There are two types:
 *
 *   Launch  one kernel on one grid: Launch(...)(stream, *values)
 *   Call    one plan: Call(...)(a, b, out, alpha, beta), which takes the usual call and hands all others to Python
 *
 * Objects do not change once they are made, and arguments lie on the stack, so that no call waits for another one and
 * a Python without a global lock needs none either. Where there is such a lock, it is let go while the driver works: a
 * launch waits where the stream's queue is full, perhaps for a function of the user's that wants the lock.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <limits.h>
#include <stddef.h>
#include <string.h>
#include <structmember.h>

enum {
    KEPT = 10, /* objects that a Call keeps */
    MOST_ARGUMENTS = 64,
    BLOCK_BYTES = 4096, /* what every driver takes of arguments */
    MAP_BYTES = 128,    /* of a CUtensorMap */
    MAP_ALIGNMENT = 64,
    PDL = 6,            /* CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION */
    NO_CONTEXT = 201,   /* CUDA_ERROR_INVALID_CONTEXT */
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

/* What both types begin with: how they are called, and the objects that they keep. */
typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *kept[KEPT];
} Head;

/* ---- Launch ------------------------------------------------------------------------------------------------------ */

/* The objects of a Launch. */
enum {
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
    char codes[MOST_ARGUMENTS];
    unsigned short starts[MOST_ARGUMENTS]; /* where each argument lies in its block */
} Launch;

/* One argument as its code says. -1 with an exception where it is not of that type. */
static int put(char code, PyObject *value, unsigned char *to)
{
    switch (code) {
    case 'Q': {
        unsigned long long number = PyLong_AsUnsignedLongLong(value);
        if (number == ULLONG_MAX && PyErr_Occurred())
            return -1;
        memcpy(to, &number, sizeof number);
        return 0;
    }
    case 'i':
    case 'I': {
        long long number = PyLong_AsLongLong(value);
        if (number == -1 && PyErr_Occurred())
            return -1;
        if (code == 'i' ? number < INT_MIN || number > INT_MAX : number < 0 || number > UINT_MAX) {
            PyErr_Format(PyExc_OverflowError, "%lld does not fit into code %c", number, code);
            return -1;
        }
        unsigned low = (unsigned)number; /* the same bits for both */
        memcpy(to, &low, sizeof low);
        return 0;
    }
    case 'f':
    case 'd': {
        double number = PyFloat_AsDouble(value);
        if (number == -1.0 && PyErr_Occurred())
            return -1;
        float single = (float)number; /* infinite past float's range */
        if (code == 'f')
            memcpy(to, &single, sizeof single);
        else
            memcpy(to, &number, sizeof number);
        return 0;
    }
    default: /* 'm': no other is accepted when a Launch is made */
        if (!PyBytes_Check(value) || PyBytes_GET_SIZE(value) != MAP_BYTES) {
            PyErr_Format(PyExc_TypeError, "a tensor map has %d bytes", MAP_BYTES);
            return -1;
        }
        memcpy(to, PyBytes_AS_STRING(value), MAP_BYTES);
        return 0;
    }
}

static PyObject *launch_call(PyObject *callable, PyObject *const *given, size_t flags, PyObject *names)
{
    Launch *self = (Launch *)callable;
    Py_ssize_t count = PyVectorcall_NARGS(flags);
    if (names || count != self->count + 1)
        return PyErr_Format(PyExc_TypeError, "a launch takes a stream and %zd arguments", self->count);
    void *stream = PyLong_AsVoidPtr(given[0]);
    if (!stream && PyErr_Occurred())
        return NULL;

    _Alignas(MAP_ALIGNMENT) unsigned char block[BLOCK_BYTES];
    void *arguments[MOST_ARGUMENTS];
    for (Py_ssize_t i = 0; i < self->count; i++) {
        arguments[i] = block + self->starts[i];
        if (put(self->codes[i], given[i + 1], arguments[i]))
            return NULL;
    }

    Config config = self->config;
    config.stream = stream;
    int status;
    for (int attempt = 0;; attempt++) {
        Py_BEGIN_ALLOW_THREADS
        status = self->launch(&config, self->function, arguments, NULL);
        Py_END_ALLOW_THREADS
        if (status != NO_CONTEXT || attempt)
            break;
        PyObject *entered = PyObject_CallNoArgs(self->head.kept[ENTER]); /* the first call of a thread */
        if (!entered)
            return NULL;
        Py_DECREF(entered);
    }
    if (!status)
        Py_RETURN_NONE;
    PyObject *error = PyObject_CallFunction(self->head.kept[FAILED], "i", status);
    if (error) {
        PyErr_SetObject((PyObject *)Py_TYPE(error), error);
        Py_DECREF(error);
    }
    return NULL;
}

/* Launch(address, function, grid, block, smem_bytes, codes, pdl, enter, failed): `address` is cuLaunchKernelEx. */
static PyObject *launch_new(PyTypeObject *type, PyObject *given, PyObject *Py_UNUSED(named))
{
    unsigned long long address, function;
    unsigned grid[3], block[3], smem_bytes;
    const char *codes;
    int pdl;
    PyObject *enter, *failed;
    if (!PyArg_ParseTuple(given, "KK(III)(III)IspOO", &address, &function, &grid[0], &grid[1], &grid[2], &block[0],
                          &block[1], &block[2], &smem_bytes, &codes, &pdl, &enter, &failed))
        return NULL;
    size_t count = strlen(codes), end = 0;
    unsigned short starts[MOST_ARGUMENTS];
    for (size_t i = 0; i < count; i++) {
        int is_map = codes[i] == 'm';
        end = is_map ? (end + MAP_ALIGNMENT - 1) / MAP_ALIGNMENT * MAP_ALIGNMENT : end;
        if (!strchr("QiIfdm", codes[i]) || i == MOST_ARGUMENTS || end + MAP_BYTES > BLOCK_BYTES)
            return PyErr_Format(PyExc_ValueError, "no launch takes arguments %s", codes);
        starts[i] = (unsigned short)end;
        end += is_map ? MAP_BYTES : 8;
    }
    Launch *self = (Launch *)type->tp_alloc(type, 0);
    if (!self)
        return NULL;
    self->head.vectorcall = launch_call;
    self->head.kept[ENTER] = Py_NewRef(enter);
    self->head.kept[FAILED] = Py_NewRef(failed);
    self->launch = (LaunchFunction)(uintptr_t)address;
    self->function = (void *)(uintptr_t)function;
    memcpy(self->config.grid, grid, sizeof grid);
    memcpy(self->config.block, block, sizeof block);
    self->config.smem_bytes = smem_bytes;
    self->attribute.id = PDL;
    self->attribute.value = 1;
    self->config.attributes = &self->attribute;
    self->config.count = pdl != 0;
    self->count = (Py_ssize_t)count;
    memcpy(self->codes, codes, count);
    memcpy(self->starts, starts, sizeof starts);
    return (PyObject *)self;
}

/* ---- Call -------------------------------------------------------------------------------------------------------- */

/* The objects of a Call. */
enum {
    PLAN,      /* takes every call that is not usual */
    TRACKS,    /* the plan's: whether autograd has to know of a product; None where it never has */
    CURRENT,   /* gives the number of the current GPU */
    INDEX,     /* the arrays' GPU */
    STREAM,    /* gives the current stream of a GPU */
    CAPTURING, /* tells whether a stream is captured */
    POINTER,   /* gives the address of an array */
    RUN,       /* puts the product on a stream */
    USED,      /* is told of each product that was put there */
    WROTE,     /* is told of each `out` that was written, None where nobody watches */
};

typedef struct {
    Head head;
    long device; /* the index as a number */
    unsigned long long span_a, span_b, span_c; /* bytes from the first element to behind the last */
    unsigned long long odd;                    /* bits that no address of an element has */
} Call;

/* The address of an array's first element as an object and as a number; NULL with an exception. */
static PyObject *address_of(const Call *self, PyObject *array, unsigned long long *address)
{
    PyObject *object = PyObject_CallOneArg(self->head.kept[POINTER], array);
    if (object) {
        *address = PyLong_AsUnsignedLongLong(object);
        if (*address == ULLONG_MAX && PyErr_Occurred())
            Py_CLEAR(object);
    }
    return object;
}

/* 1 where the product was put on the stream, 0 where Python has to look at the call, -1 with an exception. */
static int usual(const Call *self, PyObject *const *given)
{
    PyObject *const *kept = self->head.kept;
    PyObject *out = given[2], *stream, *a = NULL, *b = NULL, *c = NULL, *done = NULL;
    unsigned long long at_a, at_b, at_c;
    int result = -1;
    if (out == Py_None || !PyFloat_CheckExact(given[3]) || !PyFloat_CheckExact(given[4]))
        return 0;
    PyObject *current = PyObject_CallNoArgs(kept[CURRENT]);
    if (!current)
        return -1;
    long device = PyLong_AsLong(current);
    Py_DECREF(current);
    if (device != self->device)
        return device == -1 && PyErr_Occurred() ? -1 : 0;
    stream = PyObject_CallOneArg(kept[STREAM], kept[INDEX]);
    if (!stream)
        return -1;
    PyObject *capturing = PyObject_CallOneArg(kept[CAPTURING], stream);
    if (!capturing)
        goto end;
    int captured = PyObject_IsTrue(capturing);
    Py_DECREF(capturing);
    if (captured) {
        result = captured < 0 ? -1 : 0;
        goto end;
    }
    if (!(a = address_of(self, given[0], &at_a)) || !(b = address_of(self, given[1], &at_b)) ||
        !(c = address_of(self, out, &at_c)))
        goto end;
    unsigned long long end_c = at_c + self->span_c;
    if ((at_a < end_c && at_c < at_a + self->span_a) || (at_b < end_c && at_c < at_b + self->span_b) ||
        ((at_a | at_b | at_c) & self->odd)) {
        result = 0;
        goto end;
    }
    PyObject *passed[] = {stream, Py_False, a, b, c, given[3], given[4]};
    done = PyObject_Vectorcall(kept[RUN], passed, 7, NULL);
    if (!done)
        goto end;
    Py_SETREF(done, PyObject_CallNoArgs(kept[USED]));
    if (done && kept[WROTE] != Py_None)
        Py_SETREF(done, PyObject_CallOneArg(kept[WROTE], out));
    result = done ? 1 : -1;
end:
    Py_XDECREF(done);
    Py_XDECREF(c);
    Py_XDECREF(b);
    Py_XDECREF(a);
    Py_DECREF(stream);
    return result;
}

static PyObject *call_call(PyObject *callable, PyObject *const *given, size_t flags, PyObject *names)
{
    Call *self = (Call *)callable;
    if (names || PyVectorcall_NARGS(flags) != 5)
        return PyErr_Format(PyExc_TypeError, "a plan takes a, b, out, alpha and beta");
    int result = usual(self, given);
    if (result > 0)
        return Py_NewRef(given[2]);
    return result ? NULL : PyObject_Vectorcall(self->head.kept[PLAN], given, 5, NULL);
}

/* Call(plan, tracks, current, index, stream, capturing, pointer, run, used, wrote, spans, odd) */
static PyObject *call_new(PyTypeObject *type, PyObject *given, PyObject *Py_UNUSED(named))
{
    PyObject *kept[KEPT];
    unsigned long long span_a, span_b, span_c, odd;
    if (!PyArg_ParseTuple(given, "OOOOOOOOOO(KKK)K", &kept[PLAN], &kept[TRACKS], &kept[CURRENT], &kept[INDEX],
                          &kept[STREAM], &kept[CAPTURING], &kept[POINTER], &kept[RUN], &kept[USED], &kept[WROTE],
                          &span_a, &span_b, &span_c, &odd))
        return NULL;
    long device = PyLong_AsLong(kept[INDEX]);
    if (device == -1 && PyErr_Occurred())
        return NULL;
    Call *self = (Call *)type->tp_alloc(type, 0);
    if (!self)
        return NULL;
    self->head.vectorcall = call_call;
    for (int i = 0; i < KEPT; i++)
        self->head.kept[i] = Py_NewRef(kept[i]);
    self->device = device;
    self->span_a = span_a, self->span_b = span_b, self->span_c = span_c;
    self->odd = odd;
    return (PyObject *)self;
}

/* ---- The module -------------------------------------------------------------------------------------------------- */

static int traverse(PyObject *object, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(object));
    for (int i = 0; i < KEPT; i++)
        Py_VISIT(((Head *)object)->kept[i]);
    return 0;
}

static int clear(PyObject *object)
{
    for (int i = 0; i < KEPT; i++)
        Py_CLEAR(((Head *)object)->kept[i]);
    return 0;
}

static void dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    clear(object);
    type->tp_free(object);
    Py_DECREF(type);
}

static PyMemberDef members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Head, vectorcall), READONLY, NULL},
    {"tracks", T_OBJECT, offsetof(Head, kept) + TRACKS * sizeof(PyObject *), READONLY, NULL}, /* of a Call */
    {NULL, 0, 0, 0, NULL},
};

#define SLOTS(new)                                                                                       \
    {                                                                                                    \
        {Py_tp_new, new}, {Py_tp_call, PyVectorcall_Call}, {Py_tp_members, members},                     \
        {Py_tp_traverse, traverse}, {Py_tp_clear, clear}, {Py_tp_dealloc, dealloc}, {0, NULL},           \
    }

static PyType_Slot launch_slots[] = SLOTS(launch_new), call_slots[] = SLOTS(call_new);

enum { TYPE_FLAGS = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL };

static PyType_Spec specs[] = {
    {"tilewright_launcher.Launch", sizeof(Launch), 0, TYPE_FLAGS, launch_slots},
    {"tilewright_launcher.Call", sizeof(Call), 0, TYPE_FLAGS, call_slots},
};

static int execute(PyObject *module)
{
    for (int i = 0; i < 2; i++) {
        PyObject *type = PyType_FromModuleAndSpec(module, &specs[i], NULL);
        int added = type ? PyModule_AddType(module, (PyTypeObject *)type) : -1;
        Py_XDECREF(type);
        if (added)
            return -1;
    }
    return 0;
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, execute},
#if PY_VERSION_HEX >= 0x030d0000
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static PyModuleDef module = {PyModuleDef_HEAD_INIT, .m_name = "tilewright_launcher", .m_slots = module_slots};

PyMODINIT_FUNC PyInit_tilewright_launcher(void)
{
    return PyModuleDef_Init(&module);
}
