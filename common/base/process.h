/* How a program begins and ends: its standard descriptors, its signals. For programs, not for
 * libraries. */
#ifndef FLOTILLA_BASE_PROCESS_H
#define FLOTILLA_BASE_PROCESS_H

/* The first call of main. A standard descriptor that is closed is opened on /dev/null: else the
 * next file or socket takes its number, and what is printed goes there. */
void process_start(void);

/* For daemons. SIGPIPE is ignored: a log or an output whose reader is gone is no reason to end.
 * SIGHUP is ignored too, and kept free for "read the configuration again". */
void process_serve(void);

/* To be called when nobody waits for anything more of this process. It goes on to its end; if that
 * takes more than so many seconds, it ends at once with status 0, whatever its threads still do. */
void process_end_within(unsigned seconds);

#endif
