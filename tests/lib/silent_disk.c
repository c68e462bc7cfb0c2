/* Preloaded into a program: a disk that does not answer. Opening a *.gguf file never returns. */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

typedef int (*open_fn)(const char *path, int flags, ...);

int open(const char *path, int flags, ...)
{
    open_fn real;
    void *symbol = dlsym(RTLD_NEXT, "open");
    memcpy(&real, &symbol, sizeof real);
    size_t n = strlen(path);
    while (n > 5 && strcmp(path + n - 5, ".gguf") == 0) (void)pause();
    va_list args;
    va_start(args, flags);
    int mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(args, int) : 0;
    va_end(args);
    return real(path, flags, mode);
}
