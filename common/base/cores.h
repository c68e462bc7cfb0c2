/* The cores that this process may run on, as they were when it was first asked, and threads that
 * stay on one of them. */
#ifndef FLOTILLA_BASE_CORES_H
#define FLOTILLA_BASE_CORES_H

/* How many there are, at least 1. */
unsigned cores_count(void);
/* The system's number of the idx-th; -1: there is none. */
int cores_number(unsigned idx);

/* Keeps the calling thread, and threads that it starts, on the idx-th core; lets it use all again.
 * Where the system refuses, nothing changes. */
void cores_stay_on(unsigned idx);
void cores_roam(void);

#endif
