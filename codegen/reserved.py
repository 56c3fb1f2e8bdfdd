"""Names that an emitted function cannot have: C++ has no such, it would clash at link, or its header would hide
another."""

import re

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
"""Routines of BLAS, CBLAS and LAPACK, also as Fortran names them: a program that links such a library would call either
by the order of linking."""
_KEYWORDS = frozenset(
    "alignas alignof and and_eq asm auto bitand bitor bool break case catch char char8_t char16_t char32_t class "
    "compl concept const consteval constexpr constinit const_cast continue co_await co_return co_yield decltype "
    "default delete do double dynamic_cast else enum explicit export extern false float for friend goto if inline "
    "int long main mutable namespace new noexcept not not_eq nullptr operator or or_eq private protected public "
    "register reinterpret_cast requires restrict return short signed sizeof static static_assert static_cast "
    "struct switch template this thread_local throw true try typedef typeid typename union unsigned using virtual "
    "void volatile wchar_t while xor xor_eq".split()
)
"""Words of C++."""

_MATH = (
    "acos acosh asin asinh atan atan2 atanh cabs cacos cacosh carg casin casinh catan catanh cbrt ccos "
    "ccosh ceil cexp cimag clog conj copysign cos cosh cpow cproj creal csin csinh csqrt ctan ctanh erf "
    "erfc exp exp10 exp2 expm1 fabs fdim floor fma fmax fmin fmod frexp gamma hypot ilogb j0 j1 jn "
    "ldexp lgamma llrint llround log log10 log1p log2 logb lrint lround modf nan nearbyint nextafter "
    "nexttoward pow remainder remquo rint round scalbln scalbn sin sincos sinh sqrt tan tanh tgamma "
    "trunc y0 y1 yn llogb nextdown nextup roundeven scalb cospi cyl_bessel_i0 cyl_bessel_i1 erfcinv erfcx erfinv norm "
    "norm3d norm4d normcdf normcdfinv rcbrt rhypot rnorm rnorm3d rnorm4d rsqrt sincospi sinpi"
)
_C = (
    "abort abs aligned_alloc asctime at_quick_exit atexit atof atoi atol atoll bsearch btowc calloc "
    "clearerr clock ctime difftime div errno exit fclose feof ferror fflush fgetc fgetpos fgets fgetwc "
    "fgetws fopen fprintf fputc fputs fputwc fputws fread free freopen fscanf fseek fsetpos ftell fwide "
    "fwprintf fwrite fwscanf getc getchar getenv gets getwc getwchar gmtime imaxabs imaxdiv isalnum "
    "isalpha isblank iscntrl isdigit isfinite isgraph isinf isnan isnormal islower isprint ispunct "
    "isspace isupper iswalnum iswalpha isxdigit labs ldiv llabs lldiv localeconv localtime longjmp main "
    "malloc mblen mbrlen mbrtowc mbsinit mbstowcs mbtowc memchr memcmp memcpy memmove memset mktime "
    "perror printf putc putchar puts putwc putwchar qsort quick_exit raise rand realloc remove rename "
    "rewind scanf setbuf setjmp setlocale setvbuf signal signbit snprintf sprintf srand sscanf strcat "
    "strchr strcmp strcoll strcpy strcspn strdup strerror strftime strlen strncat strncmp strncpy "
    "strpbrk strrchr strspn strstr strtod strtof strtok strtol strtold strtoll strtoul strtoull strxfrm "
    "swprintf system time timespec_get tmpfile tmpnam tolower toupper ungetc ungetwc va_arg va_end "
    "va_start vfprintf vprintf vscanf vsnprintf vsprintf vsscanf wcscmp wcscpy wcslen wcstombs wctomb "
    "wmemcpy wprintf wscanf"
)
_POSIX = (
    "accept access alarm bcmp bcopy bind brk bzero chdir chmod chown close closedir connect creat "
    "daemon dlclose dlopen dlsym drand48 dup dup2 environ execl execv execve fchmod fcntl ffs fileno "
    "fork fsync ftruncate getopt getpid getuid index ioctl isatty kill link listen lseek mkdir mmap "
    "mprotect munmap nice open opendir optarg opterr optind optopt pause pipe poll popen pread putenv "
    "pwrite random read readdir readlink recv rindex rmdir sbrk select send setenv shutdown sigaction "
    "signgam sleep socket srandom stat stderr stdin stdout swab symlink sync sysconf times timezone "
    "truncate ttyname tzname tzset umask uname unlink unsetenv usleep utime valloc vfork wait waitpid "
    "write"
)
_CUDA = (
    "all any ballot blockDim blockIdx clock64 deprecated dim3 dim4 fdivide fdividef gridDim half half2 ll2double "
    "llmax llmin max min syncthreads_and syncthreads_count syncthreads_or threadIdx type ull2double ullmax ullmin umax "
    "umin warpSize"
)
_MACROS = (
    "BUFSIZ CHAR_BIT EOF FILE INFINITY INT_MAX INT_MIN NAN NDEBUG NULL RAND_MAX SIZE_MAX linux unix assert "
    "offsetof DBL_EPSILON DBL_MAX DBL_MIN DOMAIN ERROR FALSE FLT_EPSILON FLT_MAX FLT_MIN HUGE I IN LONG_MAX "
    "LONG_MIN M_PI OPTIONAL OUT OVERFLOW PATH_MAX TRUE UINT_MAX UNDERFLOW _Complex_I alloca complex errno far "
    "i386 imaginary assert_perror basename d_fileno isascii iscanonical iseqsig isgreater isgreaterequal isless "
    "islessequal islessgreater issignaling issubnormal isunordered toascii fortran fpclassify fromfp fromfpx "
    "iszero kill_dependency math_errhandling noreturn s6_addr s6_addr16 s6_addr32 sched_priority sigmask "
    "sigsetjmp strdupa strndupa timeradd timerclear timercmp timerisset timersub typeof typeof_unqual ufromfp "
    "ufromfpx va_copy interface major makedev minor near pascal small sparc static_assert stdin thread_local vax "
    "va_arg"
)
_HEADERS = (
    "builtin_types channel_descriptor complex ctype cuda_runtime device_types dirent dlfcn driver_functions "
    "driver_types elf endian features fenv float glob inttypes iso646 libgen libintl library_types limits locale math "
    "memory netdb pthread regex sched search stdalign stdarg stdatomic stdbool stddef stdint stdio stdlib stdnoreturn "
    "string strings surface_types syslimits syslog termios texture_types tgmath threads uchar unistd vector "
    "vector_functions vector_types wchar wctype"
)
_TARGETS = "Threads clean edit_cache help install package preinstall rebuild_cache test"
"""Targets that CMake, CTest and CPack build or import."""

_DEVICES = "aux con nul prn " + " ".join(f"{port}{i}" for port in ("com", "lpt") for i in range(10))
"""Names that Windows has for devices, in any letters: no file can have them."""
_SUCCESSES = "cl cuda cufft exit hip mpi nvjitlink nvml nvrtc nvvm vk"
"""Other systems have a constant `<THIS>_SUCCESS`."""

_RESERVED: frozenset[str] = frozenset(
    [f"{word}{end}" for word in _MATH.split() for end in ("", "f", "l")]
    + " ".join((_C, _POSIX, _CUDA, _MACROS, _HEADERS, _TARGETS)).split()
)
"""Functions of C and POSIX, what CUDA declares everywhere, macros, headers that `<name>.h` would hide, and targets."""


def refuse(name: str) -> None:
    """Raise ConfigError for a name that is no identifier of at most 64 letters in C, C++ and CUDA, or that C, the C
    library, CUDA, CMake or an operating system has."""
    word = name.isascii() and name.isidentifier() and len(name) <= 64
    check(word, f"name must match [A-Za-z_][A-Za-z0-9_]{{0,63}}, got {name!r}")
    check(name not in _KEYWORDS, f"name must not be a word of C++, got {name!r}")
    lower = name.lower()
    remedy = f"a program may link to it too; add your project's prefix, such as my_{name}"
    check(not _BLAS.fullmatch(lower), f"name must not be a routine of BLAS, CBLAS or LAPACK, got {name!r}: {remedy}")
    check(any(map(str.islower, name)), f"name must have a small letter: names in capitals are macros, got {name!r}")
    taken = (
        name in _RESERVED
        or _PATTERNS.fullmatch(name)
        or lower.startswith(_PREFIXES)
        or lower in (*_DEVICES.split(), *_SUCCESSES.split())
    )
    check(not taken, f"name must not be one of C, the C library, CUDA, CMake or a system's devices, got {name!r}")
