/* The cores that this process may run on, as they were when it was first asked, and threads that
 * stay on one of them. */
#ifndef FLOTILLA_BASE_CORES_H
#define FLOTILLA_BASE_CORES_H

#include <stdbool.h>

/* How many there are, at least 1. */
unsigned cores_count(void);
/* The system's number of the idx-th; -1: there is none. */
int cores_number(unsigned idx);

/* Keeps the calling thread, and threads that it starts, on the idx-th core; lets it use all again.
 * Where the system refuses, nothing changes. */
void cores_stay_on(unsigned idx);
void cores_roam(void);

/* Whether this process may pin a team of threads to its cores: true for one process of this machine
 * (of this network namespace) at a time, as each core is claimed by a socket of that name; two
 * teams pinned to the same cores would wait for each other. Claimed until the release or the
 * process's end; a second claim of the same process fails too. Not from several threads at once. */
bool cores_claim(void);
void cores_release(void);

#endif
