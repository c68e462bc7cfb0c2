/* The cores that this process may run on, as they were when it was first asked, and threads that
 * stay on one of them. */
#ifndef FLOTILLA_BASE_CORES_H
#define FLOTILLA_BASE_CORES_H

#include <stdbool.h>

/* How many they are, at least 1. */
unsigned cores_count(void);
/* The system's number of the idx-th; -1: there is none. */
int cores_number(unsigned idx);

/* Keeps the calling thread, and threads that it starts later, on the idx-th core; cores_roam lets
 * it use all of them again. Where the system refuses, nothing changes. */
void cores_stay_on(unsigned idx);
void cores_roam(void);

/* Claims all of this process's cores, so that it may pin a team of threads to them: two teams
 * pinned to the same cores would wait for each other. False: another process of this machine (of
 * this network namespace) has one of them, or this process has claimed them already. A claim is a
 * socket named after the core, and ends with cores_release or the process. Not from several threads
 * at once. */
bool cores_claim(void);
void cores_release(void);

#endif
