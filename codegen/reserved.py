"""Names that an emitted function cannot have: it would clash at link, or its header would hide another."""

from .errors import check

_PREFIXES = ("_", "cuda", "cu_", "nv_", "tilewright_")
"""How names begin that belong to the implementation of C, to CUDA and to tilewright."""

_MATH = (
    "acos acosh asin asinh atan atan2 atanh cabs cacos cacosh carg casin casinh catan catanh cbrt ccos "
    "ccosh ceil cexp cimag clog conj copysign cos cosh cpow cproj creal csin csinh csqrt ctan ctanh erf "
    "erfc exp exp10 exp2 expm1 fabs fdim floor fma fmax fmin fmod frexp gamma hypot ilogb j0 j1 jn "
    "ldexp lgamma llrint llround log log10 log1p log2 logb lrint lround modf nan nearbyint nextafter "
    "nexttoward pow remainder remquo rint round scalbln scalbn sin sincos sinh sqrt tan tanh tgamma "
    "trunc y0 y1 yn"
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
    "all any atomicAdd blockDim blockIdx dim3 dim4 float1 float2 float3 float4 gridDim double1 double2 "
    "double3 double4 int2 int3 int4 max min rsqrt threadIdx uint2 uint3 uint4 warpSize"
)
_MACROS = (
    "BUFSIZ CHAR_BIT EOF FILE INFINITY INT_MAX INT_MIN NAN NDEBUG NULL RAND_MAX SIZE_MAX linux unix assert offsetof "
    "DBL_EPSILON DBL_MAX DBL_MIN DOMAIN ERROR FALSE FLT_EPSILON FLT_MAX FLT_MIN HUGE I IN LONG_MAX LONG_MIN M_PI "
    "OPTIONAL OUT OVERFLOW PATH_MAX TRUE UINT_MAX UNDERFLOW _Complex_I alloca complex errno far i386 imaginary "
    "interface major makedev minor near pascal small sparc static_assert stdin thread_local vax va_arg"
)
_HEADERS = (
    "complex ctype cuda_runtime dirent dlfcn elf features fenv float inttypes iso646 libgen limits "
    "locale math memory pthread sched stdalign stdarg stdatomic stdbool stddef stdint stdio stdlib "
    "stdnoreturn string strings syslog termios tgmath threads uchar unistd vector wchar wctype"
)

_DEVICES = "aux con nul prn " + " ".join(f"{port}{i}" for port in ("com", "lpt") for i in range(10))
"""Of Windows, which has no files of these names, in any letters."""
_SUCCESSES = "cl cuda cufft exit hip mpi nvjitlink nvml nvrtc nvvm vk"
"""Other systems have a constant `<THIS>_SUCCESS`."""

_RESERVED: frozenset[str] = frozenset(
    [f"{word}{end}" for word in _MATH.split() for end in ("", "f", "l")]
    + " ".join((_C, _POSIX, _CUDA, _MACROS, _HEADERS)).split()
)
"""Functions of C and POSIX, what CUDA declares everywhere, macros, and headers that `<name>.h` would hide."""


def refuse(name: str) -> None:
    """Raise ConfigError for a name that C, the C library, CUDA or an operating system has."""
    lower = name.lower()
    taken = name in _RESERVED or lower.startswith(_PREFIXES) or lower in (*_DEVICES.split(), *_SUCCESSES.split())
    check(not taken, f"name must not be one of C, the C library, CUDA or a system's devices, got {name!r}")
