/* A trace of requests: any bytes are refused with their line, or are a trace whose parts agree. */
#include "coordinator/sim/trace.h"
#include "tests/fuzz/fuzz.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static void check(const struct trace *t)
{
    uint64_t answers = 0, at_us = 0;
    uint32_t n_blocks = 0, n_distinct = 0;
    for (uint32_t i = 0; i < t->n_requests; i++) {
        const struct trace_request *r = &t->requests[i];
        fuzz_check(r->at_us >= at_us && r->first_block == n_blocks && r->n_answer > 0);
        fuzz_check(r->n_blocks > 0 && r->n_blocks <= t->prompt_most);
        at_us = r->at_us;
        n_blocks += r->n_blocks;
        answers += r->n_answer;
    }
    fuzz_check(t->n_requests > 0 && n_blocks == t->n_blocks && answers == t->answer_tokens);
    for (uint32_t i = 0; i < n_blocks; i++) { /* numbered as they first come */
        fuzz_check(t->blocks[i] <= n_distinct);
        n_distinct += t->blocks[i] == n_distinct;
    }
    fuzz_check(n_distinct == t->n_distinct);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static int fd = -1;
    static char path[64];
    struct trace t = {0};
    struct errmsg em = {0};
    if (fd < 0) {
        fd = memfd_create("trace", 0);
        (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    }
    fuzz_check(fd >= 0 && ftruncate(fd, 0) == 0);
    fuzz_check(pwrite(fd, data, size, 0) == (ssize_t)size);
    if (trace_read(path, &t, &em) == 0)
        check(&t);
    else
        fuzz_check(strncmp(em.text, path, strlen(path)) == 0 && !t.requests);
    trace_close(&t);
    return 0;
}
