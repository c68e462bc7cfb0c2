/* What a worker does with a Step (stage_work), without sockets; and its compute thread (exec), in
 * this process, with Assigns, Steps and results through real sockets. Every allocation and every
 * read of a load is made to fail. All on a tiny model. */
#include "worker/calibrate.h"
#include "worker/exec.h"
#include "worker/stage_work.h"

#include "common/base/arena.h"
#include "common/base/clock.h"
#include "common/base/mem.h"
#include "coordinator/manifest.h"
#include "proto/wire.h"
#include "tests/lib/tiny_llama.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/lib/stage_steps.h"

#define LAYERS 3u
#define ROWS 16u
#define WAIT_MS 30000

static char folder[] = "/tmp/flotilla-worker-test-XXXXXX";
static char path[64], other_path[64]; /* two models of one name */
static struct manifest manifest;
static struct weights *model;
static struct arch_dims dims;
static struct arena arena;

/* ---- faults: the Nth call fails; 0: none. Linked with --wrap. ---- */

static atomic_int fail_alloc, fail_read, n_encoded, n_unguarded, n_given_up, n_slow;
static atomic_bool slow_load;

void *__real_mem_try(size_t bytes);
void *__wrap_mem_try(size_t bytes);
ssize_t __real_pread(int fd, void *to, size_t n, off_t at);
ssize_t __wrap_pread(int fd, void *to, size_t n, off_t at);
int __real_stage_work_open(const struct stage_work_options *o, struct stage_work **ret,
                           struct errmsg *em);
int __wrap_stage_work_open(const struct stage_work_options *o, struct stage_work **ret,
                           struct errmsg *em);
void __real_wire_put_step(const struct msg_step *m, struct buf *to);
void __wrap_wire_put_step(const struct msg_step *m, struct buf *to);
void __real_wire_put_result(const struct msg_result *m, struct buf *to);
void __wrap_wire_put_result(const struct msg_result *m, struct buf *to);

static bool fails(atomic_int *countdown)
{
    return atomic_load(countdown) > 0 && atomic_fetch_sub(countdown, 1) == 1;
}

void *__wrap_mem_try(size_t bytes)
{
    return fails(&fail_alloc) ? NULL : __real_mem_try(bytes);
}

ssize_t __wrap_pread(int fd, void *to, size_t n, off_t at)
{
    if (!fails(&fail_read)) return __real_pread(fd, to, n, at);
    errno = EIO;
    return -1;
}

/* A load of the first layer alone goes on until it is given up, for ten seconds at the most. */
int __wrap_stage_work_open(const struct stage_work_options *o, struct stage_work **ret,
                           struct errmsg *em)
{
    bool slow = atomic_load(&slow_load) && o->assign->layer_last == 0;
    (void)atomic_fetch_add(&n_slow, slow);
    for (int i = 0; slow && i < 10000; i++, (void)usleep(1000)) {
        if (!o->progress(o->progress_arg, 1, 2)) {
            (void)atomic_fetch_add(&n_given_up, 1);
            return err_set(em, ERR_CANCELLED, "given up");
        }
    }
    return __real_stage_work_open(o, ret, em);
}

static void note_encoding(void)
{
    (void)atomic_fetch_add(&n_encoded, 1);
    if (!mem_guard_active()) (void)atomic_fetch_add(&n_unguarded, 1);
}

void __wrap_wire_put_step(const struct msg_step *m, struct buf *to)
{
    note_encoding();
    __real_wire_put_step(m, to);
}

void __wrap_wire_put_result(const struct msg_result *m, struct buf *to)
{
    note_encoding();
    __real_wire_put_result(m, to);
}

/* ---- a model and its assignments ---- */

static uint64_t hashes[LIMIT_SLICE_TENSORS];

static struct msg_assign assign_of(uint32_t first, uint32_t last)
{
    struct errmsg em = {0};
    struct msg_assign a = {.model_digest = manifest.identity,
                           .header_digest = manifest.header,
                           .tensor_hashes = hashes,
                           .layer_first = first,
                           .layer_last = last,
                           .kv_type = KV_F16,
                           .n_pages = PAGES,
                           .ctx = PAGES * LIMIT_PAGE,
                           .rows_max = ROWS,
                           .logits_max = ROWS,
                           .window = 4};
    (void)snprintf(a.model_path, sizeof a.model_path, "%s", path);
    if (manifest_slice(&manifest, model, &dims, first, last, hashes, LIMIT_SLICE_TENSORS,
                       &a.n_tensors, &em) < 0)
        fail_msg("%s", em.text);
    return a;
}

/* ---- stage_work ---- */

/* More requests than there are slots, one after another: closed ones give theirs back. */
static void test_slots_come_back(void **state)
{
    (void)state;
    struct msg_assign a = assign_of(0, LAYERS - 1);
    struct stage_work *w = open_work(&a);
    static const int32_t token = 5;
    uint64_t closed[ROWS];
    for (uint64_t request = 1, n_closed = 0; request < 8600; request += ROWS) {
        struct msg_run runs[ROWS];
        struct stage_output out;
        struct errmsg em = {0};
        for (uint32_t i = 0; i < ROWS; i++) {
            runs[i] = run_of(request + i, 0, 1, &token);
            runs[i].pages = &straight[i];
        }
        struct msg_step s = {.number = 1,
                             .width = TINY_HIDDEN,
                             .rows = ROWS,
                             .n_runs = ROWS,
                             .runs = runs,
                             .n_closed = (uint32_t)n_closed,
                             .closed = closed};
        if (stage_work_step(w, &s, NULL, &out, &em) < 0) fail_msg("%s", em.text);
        for (uint32_t i = 0; i < ROWS; i++)
            if (out.result.runs[i].error)
                fail_msg("request %" PRIu64 ": %s", request + i, out.result.runs[i].error);
        for (uint32_t i = 0; i < ROWS; i++) closed[i] = request + i;
        n_closed = ROWS;
    }
    stage_work_close(w);
}

/* What cannot be constrained as it asks ends with the reason, and the others of the Step go on. */
static void test_wrong_grammar(void **state)
{
    (void)state;
    struct msg_assign a = assign_of(0, LAYERS - 1);
    struct stage_work *w = open_work(&a);
    struct stage_output out;
    struct errmsg em = {0};
    static const int32_t token = 5;
    struct msg_run runs[2] = {run_of(1, 0, 1, &token), run_of(2, 0, 1, &token)};
    runs[0].open.grammar = "FG";
    runs[0].open.grammar_bytes = 2;
    runs[1].pages = &straight[1];
    struct msg_step s = {.number = 1, .width = TINY_HIDDEN, .rows = 2, .n_runs = 2, .runs = runs};
    assert_int_equal(stage_work_step(w, &s, NULL, &out, &em), 0);
    assert_non_null(strstr(out.result.runs[0].error, "no vocabulary")); /* the model has none */
    assert_int_equal(out.result.runs[0].n_tokens, 0);
    assert_null(out.result.runs[1].error);
    assert_int_equal(out.result.runs[1].n_tokens, 1);
    stage_work_close(w);
}

/* The next token after a list, of which the first n_prompt are the prompt. */
static int32_t next_token(struct stage_work *w, uint64_t request, const int32_t *list, uint32_t n,
                          uint32_t boundary)
{
    struct stage_output out;
    int32_t token = -1;
    for (uint32_t at = 0; at < n; at += ROWS) {
        struct msg_run r = run_of(request, at, n - at < ROWS ? n - at : ROWS, list + at);
        r.open.sampling.presence = 2;
        r.open.sampling.frequency = 2;
        r.open.boundary = boundary;
        step(w, &r, 1, &out);
        token = out.result.runs[0].tokens[0];
    }
    return token;
}

/* Presence and frequency penalties count the generated tokens only, whether these come one by one
 * or as the list of a replay. */
static void test_boundary_of_a_replay(void **state)
{
    (void)state;
    struct msg_assign a = assign_of(0, LAYERS - 1);
    struct stage_work *w = open_work(&a);
    int32_t list[80] = {3, 3, 3, 9, 9, 40};
    const uint32_t n_prompt = 6, n = 60;
    uint32_t forgets = 0, counts_prompt = 0;
    for (uint32_t at = n_prompt; at < n; at++) {
        struct stage_output out;
        /* Decoding: one more row of the request, which was opened with its first. */
        struct msg_run r = run_of(1, at == n_prompt ? 0 : at - 1, at == n_prompt ? at : 1,
                                  at == n_prompt ? list : &list[at - 1]);
        r.has_open = at == n_prompt;
        r.open.sampling.presence = r.open.sampling.frequency = 2;
        r.open.boundary = n_prompt;
        step(w, &r, 1, &out);
        list[at] = out.result.runs[0].tokens[0];
    }
    for (uint32_t at = n_prompt + 1; at < n; at++) {
        assert_int_equal(next_token(w, 100 + at, list, at, n_prompt), list[at]);
        forgets += next_token(w, 200 + at, list, at, at) != list[at];
        counts_prompt += next_token(w, 300 + at, list, at, 0) != list[at];
    }
    /* The boundary matters on this model, or the above would show nothing. */
    assert_true(forgets > 0 && counts_prompt > 0);
    stage_work_close(w);
}

#define SAID 60u

/* Guesses behind a known token, and a run of nothing but guesses behind those: a token for each row
 * that continues what was chosen, up to the first that does not, bit for bit as one by one, with
 * penalties and log-probabilities by the right history; and nothing for rows behind a wrong one. */
static void test_verify(void **state)
{
    (void)state;
    struct msg_assign a = assign_of(0, LAYERS - 1);
    struct stage_work *w = open_work(&a);
    struct stage_output out;
    struct errmsg em = {0};
    int32_t list[SAID + 16] = {3, 3, 3, 9, 9, 40};
    float chosen[SAID + 16] = {0};
    uint32_t n, n_dead = 0, n_live = 0;
    for (uint32_t request = 1; request <= 2; request++) { /* the second: its prompt only */
        uint32_t end = request == 1 ? SAID + 16 : 7;
        for (uint32_t at = 6; at < end; at++) {
            struct msg_run r = run_of(request, at == 6 ? 0 : at - 1, at == 6 ? 6 : 1,
                                      at == 6 ? list : &list[at - 1]);
            r.has_open = at == 6;
            r.open.sampling.temp = 0.8f;
            r.open.sampling.presence = r.open.sampling.frequency = 2;
            r.open.sampling.logprobs = true;
            r.open.sampling.top_logprobs = 2;
            r.open.boundary = 6;
            step(w, &r, 1, &out);
            list[at] = out.result.runs[0].tokens[0];
            chosen[at] = out.result.runs[0].logprobs.chosen[0];
        }
    }
    n = 7;
    for (uint32_t turn = 0; n + 10 < SAID; turn++) {
        uint32_t k = 1 + turn % 6, wrong = turn % (k + 1), got = 0;
        int32_t fed[8];
        for (uint32_t i = 0; i <= k; i++) fed[i] = list[n - 1 + i];
        if (wrong < k) fed[1 + wrong] = (fed[1 + wrong] + 1) % (int32_t)TINY_VOCAB;
        struct msg_run runs[2] = {run_of(2, n - 1, k + 1, fed), run_of(2, n + k, 2, &list[n + k])};
        for (uint32_t i = 0; i < 2; i++) {
            runs[i].kind = RUN_VERIFY;
            runs[i].has_open = false;
            runs[i].n_logits = runs[i].n_rows;
            runs[i].n_guesses = runs[i].n_rows - (i == 0);
            struct msg_step s = {.number = 1,
                                 .width = TINY_HIDDEN,
                                 .rows = runs[i].n_rows,
                                 .n_runs = 1,
                                 .runs = &runs[i]};
            if (stage_work_step(w, &s, NULL, &out, &em) < 0) fail_msg("%s", em.text);
            const struct msg_run_result *x = &out.result.runs[0];
            uint32_t want = i == 0 ? wrong + 1 : wrong == k ? 2 : 0;
            assert_int_equal(x->n_tokens, want);
            assert_int_equal(x->first_pos, n + (i ? k + 1 : 0));
            assert_int_equal(x->dead, want == 0);
            assert_true((x->logprobs.chosen != NULL) == (want > 0));
            for (uint32_t t = 0; t < want; t++) {
                assert_int_equal(x->tokens[t], list[x->first_pos + t]);
                assert_memory_equal(&x->logprobs.chosen[t], &chosen[x->first_pos + t],
                                    sizeof *chosen);
            }
            got += want;
            n_dead += want == 0;
            n_live += want > 0;
        }
        n += got;
    }
    assert_true(n_dead >= 5 && n_live > n_dead);
    stage_work_close(w);
}

/* Each sample of a call has noise of its own, whatever else is in the Step. */
static void test_noise_of_samples(void **state)
{
    (void)state;
    struct msg_assign a = assign_of(0, LAYERS - 1);
    struct stage_work *w = open_work(&a);
    uint32_t differ = 0;
    for (int32_t token = 0; token < 40; token++) {
        struct stage_output out;
        int32_t alone[2], together[2];
        struct msg_run runs[2];
        for (uint32_t i = 0; i < 2; i++) {
            runs[i] = run_of(1 + i, 0, 1, &token);
            runs[i].pages = &straight[i];
            runs[i].sample = i;
            runs[i].open.sampling.temp = 3;
            runs[i].open.sampling.seed = 7;
            step(w, &runs[i], 1, &out);
            alone[i] = out.result.runs[0].tokens[0];
        }
        step(w, runs, 2, &out);
        for (uint32_t i = 0; i < 2; i++) together[i] = out.result.runs[i].tokens[0];
        assert_memory_equal(together, alone, sizeof alone);
        differ += alone[0] != alone[1];
    }
    assert_true(differ > 10);
    stage_work_close(w);
}

/* A loaded slice serves another assignment only if nothing that it was made from differs. */
static void test_fits(void **state)
{
    (void)state;
    struct msg_assign a = assign_of(0, 1);
    struct stage_work *w = open_work(&a);
    assert_true(stage_work_fits(w, &a));
#define WITH(field)                                                                                \
    do {                                                                                           \
        struct msg_assign b = a;                                                                   \
        b.field++;                                                                                 \
        if (stage_work_fits(w, &b)) fail_msg("another %s fits", #field);                           \
    } while (0)
    WITH(model_digest);
    WITH(layer_first);
    WITH(layer_last);
    WITH(kv_type);
    WITH(n_pages);
    WITH(n_window_pages);
    WITH(ctx);
    WITH(rows_max);
    WITH(logits_max);
#undef WITH
    stage_work_close(w);
}

/* A load in which one allocation or one read fails ends in an error, or did without it; the next
 * load is in order. */
static void test_failing_loads(void **state)
{
    (void)state;
    struct msg_assign a = assign_of(0, LAYERS - 1);
    atomic_int *const faults[] = {&fail_alloc, &fail_read};
    for (int f = 0; f < 2; f++) {
        int failed = 0;
        for (int n = 1;; n++) {
            struct errmsg em = {0};
            struct stage_work *w = NULL;
            struct stage_work_options o = {.assign = &a, .threads = 1};
            atomic_store(faults[f], n);
            int rc = stage_work_open(&o, &w, &em);
            bool beyond = atomic_exchange(faults[f], 0) > 0;
            if (rc < 0 && !em.text[0]) fail_msg("failure %d: no text", n);
            failed += rc < 0;
            if (rc == 0) stage_work_close(w);
            if (beyond) {
                assert_int_equal(rc, 0);
                break;
            }
        }
        assert_true(failed > (f == 0 ? 10 : 0));
    }
    stage_work_close(open_work(&a));
}

/* ---- exec ---- */

struct rig {
    struct net *net;
    struct exec *exec;
    struct net_sock *to, *from; /* the stages before and after it */
    struct net_sock *monitor;   /* of `to` */
    struct epoch epoch;
    struct msg_from_worker heard;
};

static void open_rig(struct rig *r, const struct exec_options *o)
{
    struct errmsg em = {0};
    *r = (struct rig){.epoch = {9, 0, 0}};
    if (net_open(&r->net, &em) < 0 || exec_open(r->net, o, &r->exec, &em) < 0)
        fail_msg("%s", em.text);
}

static void close_links(struct rig *r)
{
    net_monitor_close(r->to, r->monitor);
    net_sock_close(r->to);
    net_sock_close(r->from);
    r->to = r->from = r->monitor = NULL;
}

static void close_rig(struct rig *r)
{
    close_links(r);
    exec_close(r->exec);
    net_close(r->net);
}

/* The next message of this epoch, but for progress. One of the epoch before may still come, about a
 * broken link. */
static enum from_worker hear(struct rig *r)
{
    do {
        struct net_poll item = {.sock = exec_socket(r->exec)};
        while (!exec_next(r->exec, &r->heard)) {
            assert_int_equal(net_poll(&item, 1, WAIT_MS), 0);
            if (!item.readable) fail_msg("the compute thread says nothing");
        }
    } while (r->heard.type == FROM_LOAD_PROGRESS || !epoch_eq(r->heard.epoch, r->epoch));
    return r->heard.type;
}

static void send_assign(struct rig *r, const struct msg_assign *a)
{
    struct msg_to_worker m = {
        .version = PROTO_VERSION, .type = TO_ASSIGN, .epoch = r->epoch, .assign = *a};
    assert_true(exec_command(r->exec, &m));
}

/* A new generation with this assignment; returns the type of its first message. */
static enum from_worker assign(struct rig *r, const struct msg_assign *a)
{
    close_links(r);
    r->epoch.generation++;
    send_assign(r, a);
    return hear(r);
}

/* Both links: from us to it, and from it to us. */
static void link_up(struct rig *r)
{
    struct errmsg em = {0};
    char bound[NET_ENDPOINT_MAX], in[NET_ENDPOINT_MAX];
    struct net_limits limits = {.hwm = 64, .frame_max = 1 << 24};
    assert_int_equal(net_socket(r->net, NET_PULL, limits, &r->from, &em), 0);
    assert_int_equal(net_bind(r->from, "tcp://127.0.0.1:*", &em), 0);
    assert_int_equal(net_bound(r->from, bound, &em), 0);
    assert_int_equal(net_socket(r->net, NET_PUSH, limits, &r->to, &em), 0);
    assert_int_equal(net_monitor(r->net, r->to, &r->monitor, &em), 0);
    (void)snprintf(in, sizeof in, "tcp://127.0.0.1%s", strrchr(r->heard.endpoint, ':'));
    assert_int_equal(net_connect(r->to, in, &em), 0);
    struct msg_to_worker m = {.version = PROTO_VERSION, .type = TO_CONNECT, .epoch = r->epoch};
    (void)snprintf(m.text, sizeof m.text, "%s", bound);
    assert_true(exec_command(r->exec, &m));
    assert_int_equal(hear(r), FROM_LINKED);
}

static void send_step(struct rig *r, const struct msg_step *s, const void *body, size_t bytes)
{
    struct buf b = {0};
    __real_wire_put_step(s, &b);
    struct net_frame f[2] = {{b.data, b.len}, {body, bytes}};
    struct net_poll item = {.sock = r->to, .want_write = true};
    while (net_send(r->to, f, bytes ? 2 : 1) < 0) {
        assert_int_equal(net_poll(&item, 1, WAIT_MS), 0);
        if (!item.writable) fail_msg("the link takes nothing");
    }
    buf_close(&b);
}

static void receive(struct rig *r, struct net_msg *m)
{
    struct net_poll item = {.sock = r->from};
    while (net_recv(r->from, m) < 0) {
        assert_int_equal(net_poll(&item, 1, WAIT_MS), 0);
        if (!item.readable) fail_msg("nothing is handed on");
    }
}

static struct msg_result receive_result(struct rig *r)
{
    struct net_msg m;
    struct msg_result result;
    struct errmsg em = {0};
    receive(r, &m);
    assert_int_equal(m.n, 1);
    struct net_frame f = net_msg_frame(&m, 0);
    if (wire_get_result(f.data, f.bytes, &arena, &result, &em) < 0) fail_msg("%s", em.text);
    net_msg_close(&m);
    return result;
}

static struct msg_heartbeat heartbeat(struct rig *r)
{
    struct msg_from_worker m = {0};
    exec_heartbeat(r->exec, &m);
    return m.heartbeat;
}

static const struct exec_options local = {.threads = 1, .listen = "127.0.0.1"};
static float activations[ROWS * TINY_HIDDEN];
static const int32_t some[ROWS] = {1, 5, 9, 40, 47, 0, 3, 3, 17, 22, 8, 31, 2, 46, 12, 6};

/* Step `number` with one run; frame: of a stage that is not the first. */
static struct msg_step step_of(const struct rig *r, uint64_t number, struct msg_run *run,
                               bool frame)
{
    return (struct msg_step){.epoch = r->epoch,
                             .number = number,
                             .rows = run->n_rows,
                             .width = TINY_HIDDEN,
                             .frame_bytes = frame ? run->n_rows * TINY_HIDDEN * sizeof(float) : 0,
                             .n_runs = 1,
                             .runs = run};
}

/* From the decoded Step to the encoded result the thread is under the guard; and bytes in and out
 * are counted apart. */
static void test_figures_and_guard(void **state)
{
    (void)state;
    struct rig r;
    open_rig(&r, &local);
    const uint32_t slices[][2] = {{0, 0}, {1, 1}, {2, 2}, {0, 2}};
    const uint64_t bytes = 4 * TINY_HIDDEN * sizeof(float);
    for (int i = 0; i < 4; i++) {
        bool first = slices[i][0] == 0, last = slices[i][1] == LAYERS - 1;
        struct msg_assign a = assign_of(slices[i][0], slices[i][1]);
        if (assign(&r, &a) != FROM_READY) fail_msg("%s", r.heard.text);
        link_up(&r);
        atomic_store(&n_encoded, 0);
        atomic_store(&n_unguarded, 0);
        for (uint64_t number = 1; number <= 3; number++) {
            struct msg_run run = run_of(7, 0, 4, some);
            struct msg_step s = step_of(&r, number, &run, !first);
            struct net_msg m;
            send_step(&r, &s, activations, (size_t)s.frame_bytes);
            receive(&r, &m);
            assert_int_equal(m.n, last ? 1 : 2);
            if (!last) assert_int_equal(net_msg_frame(&m, 1).bytes, bytes);
            net_msg_close(&m);
        }
        struct msg_heartbeat h = heartbeat(&r);
        assert_int_equal(h.activation_bytes_in, first ? 0 : 3 * bytes);
        assert_int_equal(h.activation_bytes_out, last ? 0 : 3 * bytes);
        assert_true(h.rows == 12 && h.step_done == 3 && h.step_received == 3);
        assert_int_equal(h.messages_dropped, 0);
        assert_int_equal(atomic_load(&n_encoded), 3);
        assert_int_equal(atomic_load(&n_unguarded), 0);
    }
    close_rig(&r);
}

/* A Step whose frame is shorter or longer than its header says is dropped; the right one that
 * follows is taken. */
static void test_wrong_frames(void **state)
{
    (void)state;
    struct rig r;
    open_rig(&r, &local);
    struct msg_assign a = assign_of(2, 2);
    if (assign(&r, &a) != FROM_READY) fail_msg("%s", r.heard.text);
    link_up(&r);
    struct msg_run wrong = run_of(66, 0, 2, some), right = run_of(7, 0, 2, some);
    struct msg_step s = step_of(&r, 1, &wrong, true);
    const size_t sizes[] = {0, 4, (size_t)s.frame_bytes - 4, (size_t)s.frame_bytes + 4};
    for (int i = 0; i < 4; i++) send_step(&r, &s, activations, sizes[i]);
    s = step_of(&r, 1, &right, true);
    send_step(&r, &s, activations, (size_t)s.frame_bytes);
    struct msg_result result = receive_result(&r);
    assert_true(result.number == 1 && result.n_runs == 1);
    assert_int_equal(result.runs[0].request, 7);
    assert_int_equal(heartbeat(&r).messages_dropped, 4);
    close_rig(&r);
}

/* After a Step that could not be run, no other Step of the epoch is run; the next epoch is in
 * order. */
static void test_nothing_after_a_fault(void **state)
{
    (void)state;
    struct rig r;
    open_rig(&r, &local);
    struct msg_assign a = assign_of(0, 2);
    if (assign(&r, &a) != FROM_READY) fail_msg("%s", r.heard.text);
    link_up(&r);
    const uint32_t beyond[] = {PAGES};
    struct msg_run run = run_of(7, 0, 1, some), good = run;
    run.pages = beyond;
    struct msg_step s = step_of(&r, 1, &run, false);
    send_step(&r, &s, NULL, 0);
    s = step_of(&r, 2, &good, false);
    send_step(&r, &s, NULL, 0);
    assert_int_equal(hear(&r), FROM_FAULT);
    assert_false(r.heard.downstream);
    if (!strstr(r.heard.text, "page 64 of 64")) fail_msg("%s", r.heard.text);
    /* It closes the link, and the next Step is lost with it. */
    struct net_poll items[] = {{.sock = r.monitor}, {.sock = r.from}};
    enum net_event event = NET_EVENT_NONE;
    while (event != NET_EVENT_LOST) {
        assert_int_equal(net_poll(items, 2, WAIT_MS), 0);
        if (items[1].readable) fail_msg("a Step was run behind one that could not be");
        if (!items[0].readable) fail_msg("the link stays open");
        while (event != NET_EVENT_LOST && (event = net_monitor_next(r.monitor)) != NET_EVENT_NONE)
            continue;
    }
    struct msg_heartbeat before = heartbeat(&r);
    assert_true(before.step_done == 0 && before.rows == 0);
    if (assign(&r, &a) != FROM_READY) fail_msg("%s", r.heard.text);
    link_up(&r);
    s = step_of(&r, 1, &good, false);
    send_step(&r, &s, NULL, 0);
    struct msg_result result = receive_result(&r);
    assert_true(epoch_eq(result.epoch, r.epoch) && result.number == 1);
    close_rig(&r);
}

/* An Assign that is repeated, or an old one, changes nothing: the links stay. */
static void test_repeated_assign(void **state)
{
    (void)state;
    struct rig r;
    open_rig(&r, &local);
    struct msg_assign a = assign_of(0, 2);
    if (assign(&r, &a) != FROM_READY || assign(&r, &a) != FROM_READY) fail_msg("%s", r.heard.text);
    link_up(&r);
    send_assign(&r, &a);
    r.epoch.generation--;
    send_assign(&r, &a);
    r.epoch.generation++;
    struct msg_run run = run_of(7, 0, 1, some);
    for (uint64_t number = 1; number <= 2; number++) {
        struct msg_step s = step_of(&r, number, &run, false);
        send_step(&r, &s, NULL, 0);
        assert_int_equal(receive_result(&r).number, number);
    }
    assert_false(exec_next(r.exec, &r.heard));
    while (heartbeat(&r).messages_dropped < 2) (void)net_poll(NULL, 0, 1);
    assert_int_equal(heartbeat(&r).messages_dropped, 2);
    close_rig(&r);
}

/* Data links leave the machine in plaintext only where the coordinator says so. */
static void test_plaintext_gate(void **state)
{
    (void)state;
    struct rig r;
    struct exec_options o = local;
    o.off_machine = true;
    open_rig(&r, &o);
    struct msg_assign a = assign_of(0, 2);
    assert_int_equal(assign(&r, &a), FROM_FAULT);
    assert_non_null(strstr(r.heard.text, "plaintext: true"));
    a.plaintext = true;
    assert_int_equal(assign(&r, &a), FROM_READY);
    a.plaintext = false; /* also while it holds the slice */
    assert_int_equal(assign(&r, &a), FROM_FAULT);
    close_rig(&r);
}

/* A coordinator that came back with larger Steps gets a worker that can run them. */
static void test_larger_steps_after_a_restart(void **state)
{
    (void)state;
    struct rig r;
    open_rig(&r, &local);
    struct msg_assign a = assign_of(0, 2);
    a.rows_max = a.logits_max = 2;
    if (assign(&r, &a) != FROM_READY) fail_msg("%s", r.heard.text);
    r.epoch = (struct epoch){10, 0, 0};
    a.rows_max = ROWS;
    if (assign(&r, &a) != FROM_READY) fail_msg("%s", r.heard.text);
    link_up(&r);
    struct msg_run run = run_of(7, 0, ROWS, some);
    struct msg_step s = step_of(&r, 1, &run, false);
    send_step(&r, &s, NULL, 0);
    assert_int_equal(receive_result(&r).number, 1);
    close_rig(&r);
}

/* Another model under the same name, a damaged tensor, an Assign without hashes: a fault that says
 * so. A slice in memory is not read again while the model is the same. */
static void test_other_models(void **state)
{
    (void)state;
    struct rig r;
    struct exec_options o = local;
    struct msg_holding holding;
    char other_folder[64];
    (void)snprintf(other_folder, sizeof other_folder, "%s/other", folder);
    o.models = other_folder;
    open_rig(&r, &o);
    struct msg_assign a = assign_of(0, 2);
    assert_int_equal(assign(&r, &a), FROM_FAULT);
    if (!strstr(r.heard.text, "is not the coordinator's model")) fail_msg("%s", r.heard.text);
    assert_false(exec_holding(r.exec, &holding));
    close_rig(&r);
    open_rig(&r, &local);
    hashes[3]++;
    assert_int_equal(assign(&r, &a), FROM_FAULT);
    if (!strstr(r.heard.text, "tensor 'blk.0.ffn_norm.weight' differs from the coordinator's"))
        fail_msg("%s", r.heard.text);
    assert_false(exec_holding(r.exec, &holding));
    hashes[3]--;
    a.n_tensors--;
    assert_int_equal(assign(&r, &a), FROM_FAULT);
    a.n_tensors = 0;
    assert_int_equal(assign(&r, &a), FROM_FAULT);
    if (!strstr(r.heard.text, "0 hashes")) fail_msg("%s", r.heard.text);
    a = assign_of(0, 2);
    assert_int_equal(assign(&r, &a), FROM_READY);
    assert_true(exec_holding(r.exec, &holding) && holding.model_digest == manifest.identity);
    (void)snprintf(a.model_path, sizeof a.model_path, "/nonexistent");
    assert_int_equal(assign(&r, &a), FROM_READY); /* nothing is read */
    a.model_digest++;
    assert_int_equal(assign(&r, &a), FROM_FAULT);
    close_rig(&r);
}

/* Loads that fail at any allocation or read: a message each time, and the thread goes on. */
static void test_failing_assigns(void **state)
{
    (void)state;
    struct rig r;
    open_rig(&r, &local);
    struct msg_assign a = assign_of(0, 2);
    int faults = 0;
    for (int n = 1; n <= 60; n++) {
        a.rows_max = a.rows_max == ROWS ? ROWS - 1 : ROWS; /* so that it loads */
        a.logits_max = 1;
        atomic_store(n <= 50 ? &fail_alloc : &fail_read, n <= 50 ? n : n - 50);
        faults += assign(&r, &a) == FROM_FAULT;
        atomic_store(&fail_alloc, 0);
        atomic_store(&fail_read, 0);
    }
    assert_true(faults > 20);
    a = assign_of(0, 2);
    if (assign(&r, &a) != FROM_READY) fail_msg("%s", r.heard.text);
    close_rig(&r);
}

/* ---- what a layer takes it ---- */

/* Asks, and waits for the answer, which names no generation yet. */
static struct msg_speed ask_speed(struct rig *r, const char *model_path, uint64_t header,
                                  uint32_t threads)
{
    struct msg_to_worker m = {
        .version = PROTO_VERSION,
        .type = TO_CALIBRATE,
        .calibrate = {.header_digest = header, .kv_type = KV_F16, .threads = threads}};
    (void)snprintf(m.calibrate.model_path, sizeof m.calibrate.model_path, "%s", model_path);
    assert_true(exec_command(r->exec, &m));
    struct net_poll item = {.sock = exec_socket(r->exec)};
    while (!exec_next(r->exec, &r->heard)) {
        assert_int_equal(net_poll(&item, 1, WAIT_MS), 0);
        if (!item.readable) fail_msg("the compute thread says nothing");
    }
    assert_int_equal(r->heard.type, FROM_SPEED);
    return r->heard.speed;
}

static bool same_speed(const struct msg_speed *a, const struct msg_speed *b)
{
    if (a->n_layer != b->n_layer || a->n_head != b->n_head || a->layer_bytes != b->layer_bytes ||
        a->depth != b->depth || a->position_ps != b->position_ps)
        return false;
    for (uint32_t i = 0; i < a->n_layer; i++)
        if (a->layer[i].rows != b->layer[i].rows || a->layer[i].ns != b->layer[i].ns) return false;
    for (uint32_t i = 0; i < a->n_head; i++)
        if (a->head[i].rows != b->head[i].rows || a->head[i].ns != b->head[i].ns) return false;
    return true;
}

/* The files of the folder are overwritten at one place, or become two days old. */
static void damage(const char *speeds, bool age)
{
    const struct timespec old[2] = {{.tv_sec = time(NULL) - 2 * 86400},
                                    {.tv_sec = time(NULL) - 2 * 86400}};
    char name[400];
    DIR *d = opendir(speeds);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));) {
        if (e->d_name[0] == '.') continue;
        (void)snprintf(name, sizeof name, "%s/%s", speeds, e->d_name);
        int fd = open(name, O_WRONLY);
        assert_true(fd >= 0 && (age || pwrite(fd, "x", 1, 60) == 1));
        assert_true((!age || futimens(fd, old) == 0) && close(fd) == 0);
    }
    (void)closedir(d);
}

static void empty(const char *speeds)
{
    char name[400];
    DIR *d = opendir(speeds);
    for (struct dirent *e; d && (e = readdir(d));) {
        (void)snprintf(name, sizeof name, "%s/%s", speeds, e->d_name);
        if (e->d_name[0] != '.') (void)unlink(name);
    }
    if (d) (void)closedir(d);
    (void)rmdir(speeds);
}

/* Measured once: the answer is the same to the next question, and to one that another process is
 * asked. It says what the model's layers are, reads no tensor, and holds nothing afterwards. */
static void test_calibrate(void **state)
{
    (void)state;
    struct rig r;
    struct errmsg em = {0};
    struct msg_holding holding;
    struct exec_options o = local;
    char speeds[80];
    uint64_t header = weights_digest(model), bytes;
    (void)snprintf(speeds, sizeof speeds, "%s/speeds", folder);
    o.speeds = speeds;
    open_rig(&r, &o);
    struct msg_speed first = ask_speed(&r, path, header, 0);
    if (!first.n_layer) fail_msg("%s", r.heard.text);
    assert_true(first.header_digest == header && first.kv_type == KV_F16 && first.threads == 0);
    assert_true(first.n_layer == 5 && first.layer[4].rows == 32 && first.n_head == 3);
    for (uint32_t i = 1; i < first.n_layer; i++) /* more rows never take less time */
        assert_true(first.layer[i].ns >= first.layer[i - 1].ns && first.layer[i - 1].ns > 0);
    assert_int_equal(eng_layers_bytes(model, &dims, 1, 1, &bytes, &em), 0);
    assert_int_equal(first.layer_bytes, bytes); /* they are all alike */
    assert_int_equal(first.depth, 128);
    assert_int_equal(heartbeat(&r).read_bytes, 0);
    assert_false(exec_holding(r.exec, &holding));
    struct msg_speed again = ask_speed(&r, path, header, 0);
    assert_true(same_speed(&first, &again));
    again = ask_speed(&r, path, header, 1); /* it has one thread anyway */
    assert_int_equal(again.threads, 1);
    close_rig(&r);
    open_rig(&r, &o);
    again = ask_speed(&r, path, header, 0);
    assert_true(same_speed(&first, &again));
    close_rig(&r);
    for (int i = 0; i < 2; i++) { /* it is measured anew, and kept */
        damage(speeds, i == 1);
        open_rig(&r, &o);
        first = ask_speed(&r, path, header, 0);
        assert_true(first.n_layer == 5 && !same_speed(&first, &again));
        again = first;
        close_rig(&r);
    }
    open_rig(&r, &o);
    again = ask_speed(&r, path, header, 0);
    assert_true(same_speed(&first, &again));
    /* What cannot be measured is said, and the worker goes on. */
    assert_int_equal(ask_speed(&r, path, header + 1, 0).n_layer, 0);
    assert_non_null(strstr(r.heard.text, "is not the coordinator's model"));
    assert_int_equal(ask_speed(&r, "/no/such/file", header, 0).n_layer, 0);
    assert_non_null(strstr(r.heard.text, "/no/such/file"));
    assert_int_equal(ask_speed(&r, path, header, 0).n_layer, 5);
    struct msg_assign a = assign_of(0, 2);
    if (assign(&r, &a) != FROM_READY) fail_msg("%s", r.heard.text);
    close_rig(&r);
    empty(speeds);
}

static bool some_steps(void *arg)
{
    return (*(int *)arg)-- > 0;
}

/* Any allocation may fail, and it may be given up at any Step. */
static void test_failing_calibrations(void **state)
{
    (void)state;
    struct msg_speed s;
    int left = 3, failed = 0;
    struct calibrate_options o = {.path = path,
                                  .header_digest = weights_digest(model),
                                  .kv_type = KV_F16,
                                  .threads = 1,
                                  .goes_on = some_steps,
                                  .goes_on_arg = &left};
    struct errmsg em = {0};
    assert_int_equal(calibrate(&o, &s, &em), ERR_CANCELLED);
    for (int n = 1;; n++) {
        em = (struct errmsg){0};
        left = 3;
        atomic_store(&fail_alloc, n);
        int rc = calibrate(&o, &s, &em);
        bool beyond = atomic_exchange(&fail_alloc, 0) > 0;
        assert_true(rc < 0 && em.text[0]);
        failed += rc != ERR_CANCELLED;
        if (beyond) break;
    }
    assert_true(failed > 10);
    o.kv_type = KV_N_TYPES;
    assert_int_equal(calibrate(&o, &s, &em), ERR_UNSUPPORTED);
}

static int set_up(void **state)
{
    (void)state;
    struct errmsg em = {0};
    struct tiny_llama t = {.layers = LAYERS, .seed = 3};
    char other_folder[64];
    if (!mkdtemp(folder)) return -1;
    (void)snprintf(other_folder, sizeof other_folder, "%s/other", folder);
    (void)snprintf(path, sizeof path, "%s/m-XXXXXX", folder);
    if (mkdir(other_folder, 0700) != 0 || !tiny_llama_write(&t, path)) return -1;
    char made[128];
    (void)snprintf(made, sizeof made, "%s/m-XXXXXX", other_folder);
    t.block_count = 0;
    t.layers = LAYERS + 1;
    (void)snprintf(other_path, sizeof other_path, "%s%s", other_folder, strrchr(path, '/'));
    if (!tiny_llama_write(&t, made) || rename(made, other_path) != 0) return -1;
    for (uint32_t i = 0; i < PAGES; i++) straight[i] = i;
    struct manifest_options o = {0};
    int rc = weights_open(path, &model, &em);
    o.weights = model;
    if (rc == 0) rc = arch_read(model, &dims, &em);
    if (rc == 0) rc = manifest_open(&o, &manifest, &em);
    if (rc < 0) (void)fprintf(stderr, "%s\n", em.text);
    return rc;
}

static int tear_down(void **state)
{
    (void)state;
    char other_folder[64];
    (void)snprintf(other_folder, sizeof other_folder, "%s/other", folder);
    manifest_close(&manifest);
    weights_close(model);
    arena_close(&arena);
    return unlink(other_path) || rmdir(other_folder) || unlink(path) || rmdir(folder);
}

/* A load goes on while its slice is wanted; another one waits for no load that is not, nor for
 * assignments before it. */
static void test_another_slice_is_wanted(void **state)
{
    (void)state;
    struct rig r;
    struct msg_assign first = assign_of(0, 0), all = assign_of(0, LAYERS - 1);
    open_rig(&r, &local);
    atomic_store(&slow_load, true);
    r.epoch.generation = 1;
    send_assign(&r, &first);
    while (!exec_next(r.exec, &r.heard)) (void)usleep(1000);
    assert_int_equal(r.heard.type, FROM_LOAD_PROGRESS);
    r.epoch.generation = 2;
    send_assign(&r, &first);
    (void)usleep(20000);
    assert_int_equal(atomic_load(&n_given_up), 0);
    r.epoch.generation = 3;
    send_assign(&r, &all);
    assert_int_equal(hear(&r), FROM_READY);
    assert_int_equal(atomic_load(&n_given_up), 1);
    assert_int_equal(atomic_load(&n_slow), 1); /* the second assignment was over already */
    atomic_store(&slow_load, false);
    close_rig(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_slots_come_back),
        cmocka_unit_test(test_wrong_grammar),
        cmocka_unit_test(test_boundary_of_a_replay),
        cmocka_unit_test(test_verify),
        cmocka_unit_test(test_noise_of_samples),
        cmocka_unit_test(test_fits),
        cmocka_unit_test(test_failing_loads),
        cmocka_unit_test(test_figures_and_guard),
        cmocka_unit_test(test_wrong_frames),
        cmocka_unit_test(test_nothing_after_a_fault),
        cmocka_unit_test(test_repeated_assign),
        cmocka_unit_test(test_another_slice_is_wanted),
        cmocka_unit_test(test_plaintext_gate),
        cmocka_unit_test(test_larger_steps_after_a_restart),
        cmocka_unit_test(test_other_models),
        cmocka_unit_test(test_failing_assigns),
        cmocka_unit_test(test_calibrate),
        cmocka_unit_test(test_failing_calibrations),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
