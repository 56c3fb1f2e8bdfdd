/* The module with both types and the trees. */

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

static PyMethodDef methods[] = {
    {"trees", (PyCFunction)(void (*)(void))trees, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef module = {
    PyModuleDef_HEAD_INIT, .m_name = "tilewright_launcher", .m_methods = methods, .m_slots = module_slots};

PyMODINIT_FUNC PyInit_tilewright_launcher(void) { return PyModuleDef_Init(&module); }
