/* Calls from Python in C: what is left to do of a call whose layout was seen before, and the driver's launch.
 *
 * launcher.py compiles this with the system's compiler; where that fails, Plan and DriverLaunch do the same in Python.
 * There are two types:
 *
 *   Launch  one kernel on one grid: Launch(...)(stream, *values)
 *   Call    one plan: Call(...)(a, b, out, alpha, beta), which does the usual call and leaves all others to Python
 *
 * Objects do not change once they are made and arguments lie on the stack, so that no call waits for another one, with
 * or without a global lock in Python. Where there is that lock, it is let go while the driver works: a launch waits
 * where the stream's queue is full, perhaps for a function of the user's that wants the lock.
 */

#include <Python.h>
#include <limits.h>
#include <stddef.h>
#include <string.h>
#include <structmember.h>

enum {
    MOST_KEPT = 15, /* objects that a Launch or a Call keeps */
    SLOT_BYTES = 64, /* an argument begins at a multiple of this, which keeps every type aligned */
    MOST_SLOTS = 64, /* 4 KB, what every driver takes of arguments */
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

/* What both types begin with. */
typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *kept[MOST_KEPT];
} Head;

/* ---- Launch ------------------------------------------------------------------------------------------------------ */

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

/* One argument as its code says. -1 with an exception where it is not of that type. */
static int put(char code, PyObject *value, unsigned char *to)
{
    if (code == 'Q') {
        unsigned long long number = PyLong_AsUnsignedLongLong(value);
        memcpy(to, &number, sizeof number);
        return number == ULLONG_MAX && PyErr_Occurred() ? -1 : 0;
    }
    if (code == 'i' || code == 'I') {
        long long number = PyLong_AsLongLong(value);
        if (number == -1 && PyErr_Occurred())
            return -1;
        if (code == 'i' ? number < INT_MIN || number > INT_MAX : number < 0 || number > UINT_MAX) {
            PyErr_Format(PyExc_OverflowError, "%lld does not fit code %c", number, code);
            return -1;
        }
        unsigned bits = (unsigned)number; /* the same for both */
        memcpy(to, &bits, sizeof bits);
        return 0;
    }
    if (code == 'f' || code == 'd') {
        double number = PyFloat_AsDouble(value);
        float single = (float)number; /* infinite past its range */
        memcpy(to, code == 'f' ? (void *)&single : (void *)&number, code == 'f' ? sizeof single : sizeof number);
        return number == -1.0 && PyErr_Occurred() ? -1 : 0;
    }
    if (!PyBytes_Check(value) || PyBytes_GET_SIZE(value) != MAP_BYTES) { /* 'm' */
        PyErr_Format(PyExc_TypeError, "a tensor map is %d bytes", MAP_BYTES);
        return -1;
    }
    memcpy(to, PyBytes_AS_STRING(value), MAP_BYTES);
    return 0;
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
        PyObject *done = PyObject_CallNoArgs(self->head.kept[ENTER]); /* the first call of a thread */
        if (!done)
            return NULL;
        Py_DECREF(done);
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
    const char *codes;
    int pdl, slots = 0;
    PyObject *enter, *failed;
    if (!PyArg_ParseTuple(given, "KK(III)(III)IspOO", &address, &function, &config.grid[0], &config.grid[1],
                          &config.grid[2], &config.block[0], &config.block[1], &config.block[2], &config.smem_bytes,
                          &codes, &pdl, &enter, &failed))
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

/* ---- Call -------------------------------------------------------------------------------------------------------- */

enum {         /* what a Call keeps */
    PLAN,      /* does every call that is not usual */
    TRACKS,    /* the plan's: whether autograd has to know of a product; None where it never has */
    CURRENT,   /* gives the number of the current GPU */
    INDEX,     /* the arrays' GPU */
    STREAM,    /* gives the current stream of a GPU */
    CAPTURING, /* tells whether a stream is captured */
    POINTER,   /* gives the address of an array */
    USED,      /* is told of each product that was put on a stream */
    WROTE,     /* is told of each `out` that was written; None where nobody watches */
    ACQUIRE,   /* begins the time in which other threads wait; None where they need not */
    RELEASE,   /* ends it */
    ADDRESSES, /* the rest is the Program's */
    MAPS,
    CONSTANTS,
    STEPS,
    CALL_KEEPS,
};

enum { A, B, C, ALPHA, BETA, GIVEN, MOST_VALUES = 256 }; /* numbers of values are bytes */

typedef struct {
    Head head;
    unsigned long long span[3], mask[3]; /* of A, B and C: bytes up to the end, bits that are 0 in the address */
} Call;

/* Calls something for its effect. -1 with an exception. */
static int told(PyObject *callable, PyObject *const *given, size_t count)
{
    PyObject *done = PyObject_Vectorcall(callable, given, count, NULL);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

/* What Program.carried_out does, where `values` begin with what is given. -1 with an exception. */
static int carried_out(PyObject *const *kept, PyObject *stream, PyObject **values)
{
    PyObject *own = NULL, *maps = kept[MAPS], *constants = kept[CONSTANTS], *steps = kept[STEPS];
    PyObject *asked[] = {stream, Py_False}, *passed[MOST_SLOTS + 1] = {stream};
    Py_ssize_t count = GIVEN, mapped = 0;
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
        Py_DECREF(values[GIVEN + (own ? PyTuple_GET_SIZE(own) : 0) + mapped]);
    Py_XDECREF(own);
    return result;
}

/* As `usual`, on a stream. */
static int put_on(const Call *self, PyObject *stream, PyObject *const *given)
{
    PyObject *const *kept = self->head.kept, *values[MOST_VALUES] = {[ALPHA] = given[ALPHA], [BETA] = given[BETA]};
    unsigned long long at[3], end_c;
    int result = -1, locked = kept[ACQUIRE] != Py_None;
    for (int i = A; i <= C; i++) {
        if (!(values[i] = PyObject_CallOneArg(kept[POINTER], given[i])))
            goto end;
        at[i] = PyLong_AsUnsignedLongLong(values[i]);
        if (at[i] == ULLONG_MAX && PyErr_Occurred())
            goto end;
        result = at[i] & self->mask[i] ? 0 : result;
    }
    end_c = at[C] + self->span[C];
    for (int i = A; i < C; i++)
        result = at[i] < end_c && at[C] < at[i] + self->span[i] ? 0 : result;
    if (!result || (locked && told(kept[ACQUIRE], NULL, 0)))
        goto end;
    result = carried_out(kept, stream, values);
    if (locked) {
        PyObject *type, *error, *trace;
        PyErr_Fetch(&type, &error, &trace);
        if (told(kept[RELEASE], NULL, 0))
            result = -1;
        else
            PyErr_Restore(type, error, trace);
    }
    if (!result)
        result = told(kept[USED], NULL, 0) || (kept[WROTE] != Py_None && told(kept[WROTE], &given[C], 1)) ? -1 : 1;
end:
    for (int i = A; i <= C; i++)
        Py_XDECREF(values[i]);
    return result;
}

/* 1 where the product was put on the stream, 0 where Python has to look at the call, -1 with an exception. */
static int usual(const Call *self, PyObject *const *given)
{
    PyObject *const *kept = self->head.kept;
    if (given[C] == Py_None || !PyFloat_CheckExact(given[ALPHA]) || !PyFloat_CheckExact(given[BETA]) ||
        PyFloat_AS_DOUBLE(given[ALPHA]) == 0)
        return 0;
    PyObject *current = PyObject_CallNoArgs(kept[CURRENT]);
    if (!current)
        return -1;
    int here = PyObject_RichCompareBool(current, kept[INDEX], Py_EQ);
    Py_DECREF(current);
    if (here <= 0)
        return here;
    PyObject *stream = PyObject_CallOneArg(kept[STREAM], kept[INDEX]);
    if (!stream)
        return -1;
    PyObject *capturing = PyObject_CallOneArg(kept[CAPTURING], stream);
    int captured = capturing ? PyObject_IsTrue(capturing) : -1;
    Py_XDECREF(capturing);
    int result = captured ? (captured < 0 ? -1 : 0) : put_on(self, stream, given);
    Py_DECREF(stream);
    return result;
}

static PyObject *call_call(PyObject *object, PyObject *const *given, size_t flags, PyObject *names)
{
    Call *self = (Call *)object;
    if (names || PyVectorcall_NARGS(flags) != GIVEN)
        return PyErr_Format(PyExc_TypeError, "a plan takes a, b, out, alpha and beta");
    int result = usual(self, given);
    if (result > 0)
        return Py_NewRef(given[C]);
    return result ? NULL : PyObject_Vectorcall(self->head.kept[PLAN], given, GIVEN, NULL);
}

/* Call(kept, spans, masks) */
static PyObject *call_new(PyTypeObject *type, PyObject *given, PyObject *Py_UNUSED(named))
{
    PyObject *kept;
    unsigned long long span[3], mask[3];
    if (!PyArg_ParseTuple(given, "O!(KKK)(KKK)", &PyTuple_Type, &kept, &span[A], &span[B], &span[C], &mask[A],
                          &mask[B], &mask[C]))
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

/* ---- The module -------------------------------------------------------------------------------------------------- */

static int traverse(PyObject *object, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(object));
    for (int i = 0; i < MOST_KEPT; i++)
        Py_VISIT(((Head *)object)->kept[i]);
    return 0;
}

static int clear(PyObject *object)
{
    for (int i = 0; i < MOST_KEPT; i++)
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

#define SLOTS(new)                                                                                                   \
    {{Py_tp_new, new}, {Py_tp_call, PyVectorcall_Call}, {Py_tp_members, members}, {Py_tp_traverse, traverse},        \
     {Py_tp_clear, clear}, {Py_tp_dealloc, dealloc}, {0, NULL}}

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
        int failed = type ? PyModule_AddType(module, (PyTypeObject *)type) : -1;
        Py_XDECREF(type);
        if (failed)
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

PyMODINIT_FUNC PyInit_tilewright_launcher(void) { return PyModuleDef_Init(&module); }
