#include "common/base/process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stddef.h>
#include <unistd.h>

void process_start(void)
{
    /* In ascending order: open takes the lowest free number, which is the one that is missing. */
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF)
            (void)open("/dev/null", fd == STDIN_FILENO ? O_RDONLY : O_WRONLY);
}

void process_serve(void)
{
    (void)signal(SIGPIPE, SIG_IGN);
    (void)signal(SIGHUP, SIG_IGN);
}

static void on_alarm(int number)
{
    (void)number;
    _exit(0);
}

void process_end_within(unsigned seconds)
{
    struct sigaction action = {.sa_handler = on_alarm};
    (void)sigaction(SIGALRM, &action, NULL);
    (void)alarm(seconds);
}
