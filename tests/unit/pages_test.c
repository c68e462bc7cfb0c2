/* Pages and the prefix index: counts, sharing, eviction, and the longest prefix. */
#include "coordinator/core/pages.h"

#include "common/base/rng.h"
#include "tests/lib/core_config.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { SIZE = 4, TOKENS = 64 };

static struct index *cluster; /* whose only replica has the pool */

static struct pages *open_pool(uint32_t n_pages, bool share, uint64_t mask)
{
    struct index_config x = {.n_replicas = 1, .page_size = SIZE, .seed = {1, 2}, .hash_mask = mask};
    cluster = index_open(&x);
    struct pages_config k = {.index = cluster, .n_pages = n_pages, .share = share};
    return pages_open(&k);
}

static void close_pool(struct pages *p)
{
    pages_close(p);
    index_close(cluster);
}

/* The linker leads hashes through here: those of pages are counted. */
struct hash128 __real_hash128_bytes(const void *data, size_t len, uint64_t seed);
struct hash128 __wrap_hash128_bytes(const void *data, size_t len, uint64_t seed);
static uint32_t n_hashes;

struct hash128 __wrap_hash128_bytes(const void *data, size_t len, uint64_t seed)
{
    n_hashes += len == SIZE * sizeof(int32_t);
    return __real_hash128_bytes(data, len, seed);
}

/* And the core's call of index_open, to be looked at. */
struct index *__real_index_open(const struct index_config *config);
struct index *__wrap_index_open(const struct index_config *config);
static struct index_config opened;

struct index *__wrap_index_open(const struct index_config *config)
{
    opened = *config;
    return __real_index_open(config);
}

static bool same_stats(struct pages_stats a, struct pages_stats b)
{
    return a.n_free == b.n_free && a.n_cached == b.n_cached && a.n_held == b.n_held &&
           a.evicted == b.evicted;
}

/* A sequence as the core keeps one, and what it should read. */
struct table {
    uint32_t pages[TOKENS / SIZE], n;
    int32_t tokens[TOKENS / SIZE][SIZE];
    struct prefix walk;
};

/* Takes a page, fills it with `tokens` in Step `step`, and enters it. False: there is none. */
static bool fill(struct pages *p, struct table *t, const int32_t *tokens, uint64_t step)
{
    uint32_t page;
    if (!pages_take(p, &page)) return false;
    uint32_t kept = pages_enter(p, &t->walk, tokens, step, page);
    if (kept != page) pages_drop(p, page);
    memcpy(t->tokens[t->n], tokens, sizeof t->tokens[t->n]);
    t->pages[t->n++] = kept;
    return true;
}

static enum pages_found find(struct pages *p, struct table *t, const int32_t *tokens, uint64_t step)
{
    enum pages_found found = pages_find(p, &t->walk, tokens, step, &t->pages[t->n]);
    if (found != PAGES_HIT) return found;
    memcpy(t->tokens[t->n++], tokens, SIZE * sizeof *tokens);
    return found;
}

static void release(struct pages *p, struct table *t)
{
    while (t->n) pages_drop(p, t->pages[--t->n]);
    t->walk = pages_root(p, 0);
}

/* How many positions of a table hold what was written there. */
static uint32_t reads(const struct pages *p, const struct table *t)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < t->n; i++)
        for (uint32_t k = 0; k < SIZE; k++)
            n += pages_view(p, t->pages[i]).tokens[k] == t->tokens[i][k];
    return n;
}

static struct table new_table(const struct pages *p)
{
    return (struct table){.walk = pages_root(p, 0)};
}

static const int32_t one[SIZE] = {1, 1, 1, 1}, two[SIZE] = {2, 2, 2, 2}, three[SIZE] = {3, 3, 3, 3};

/* Capacity 2: `one` and `two` are entered and released, `one` is found again: `three` takes the
 * place of `two`. */
static void test_least_recently_used(void **state)
{
    (void)state;
    struct pages *p = open_pool(2, true, UINT64_MAX);
    struct table a = new_table(p), b = new_table(p), c = new_table(p);
    assert_true(fill(p, &a, one, 1));
    assert_true(fill(p, &b, two, 2));
    uint32_t page;
    assert_false(pages_take(p, &page)); /* all are held: refused, and nothing is evicted */
    assert_int_equal(pages_stats(p).evicted, 0);
    release(p, &a);
    release(p, &b);
    assert_int_equal(pages_stats(p).n_cached, 2); /* resident, and evictable */
    assert_int_equal(pages_available(p), 2);
    assert_int_equal(find(p, &a, one, 9), PAGES_HIT); /* look-up and pin are one */
    assert_int_equal(pages_stats(p).n_held, 1);
    release(p, &a);
    assert_true(fill(p, &c, three, 10));
    assert_int_equal(pages_stats(p).evicted, 1);
    release(p, &c); /* a new entry is not the first victim: 1 is older */
    assert_int_equal(find(p, &b, two, 11), PAGES_NONE);
    assert_int_equal(find(p, &a, one, 11), PAGES_HIT);
    release(p, &a);
    assert_int_equal(find(p, &c, three, 11), PAGES_HIT);
    release(p, &c);
    close_pool(p);
}

static void test_same_key_twice(void **state)
{
    (void)state;
    struct pages *p = open_pool(4, true, UINT64_MAX);
    struct table a = new_table(p), b = new_table(p);
    assert_true(fill(p, &a, one, 1));
    assert_true(fill(p, &b, one, 1)); /* one entry; the loser's page is free again */
    assert_int_equal(a.pages[0], b.pages[0]);
    assert_int_equal(pages_view(p, a.pages[0]).count, 2);
    struct pages_stats s = pages_stats(p);
    assert_int_equal(s.n_free, 3);
    assert_int_equal(s.n_held, 1);
    release(p, &a);
    assert_int_equal(pages_stats(p).n_held, 1);
    release(p, &b);
    assert_int_equal(pages_stats(p).n_cached, 1);
    close_pool(p);
}

static void test_no_capacity(void **state)
{
    (void)state;
    struct pages *p = open_pool(0, true, UINT64_MAX);
    uint32_t page;
    assert_false(pages_take(p, &page));
    assert_int_equal(pages_available(p), 0);
    close_pool(p);
    p = open_pool(4, false, UINT64_MAX); /* sharing is off: nothing is kept or found */
    struct table a = new_table(p), b = new_table(p);
    n_hashes = 0;
    assert_true(fill(p, &a, one, 1));
    release(p, &a);
    assert_int_equal(find(p, &b, one, 5), PAGES_NONE);
    assert_int_equal(pages_stats(p).n_free, 4);
    assert_int_equal(n_hashes, 0);
    close_pool(p);
}

/* The chain covers order, tenant and all that the seed stands for; a page costs one hash. */
static void test_hash(void **state)
{
    (void)state;
    struct pages *p = open_pool(8, true, UINT64_MAX);
    struct table a = new_table(p), b = new_table(p);
    n_hashes = 0;
    assert_true(fill(p, &a, one, 1) && fill(p, &a, two, 1) && fill(p, &a, three, 1));
    assert_int_equal(n_hashes, 3);
    for (int i = 0; i < 5; i++) assert_int_equal(find(p, &b, two, 9), PAGES_NONE);
    assert_int_equal(n_hashes, 4); /* however often it is looked for */
    struct prefix other = pages_root(p, 7);
    uint32_t page;
    assert_int_equal(pages_find(p, &other, one, 9, &page), PAGES_NONE); /* another tenant's */
    for (int i = 0; i < 3; i++) { /* the same; another seed; another page size */
        struct index_config k = {.n_replicas = 1,
                                 .page_size = i == 2 ? 8 : SIZE,
                                 .seed = {1, i == 1 ? 3 : 2},
                                 .hash_mask = UINT64_MAX};
        struct index *x = index_open(&k);
        struct hash128 mine = pages_root(p, 0).hash, theirs = index_root(x, 0).hash;
        assert_int_equal(mine.lo == theirs.lo && mine.hi == theirs.hi, i == 0);
        index_close(x);
    }
    release(p, &a);
    close_pool(p);
}

/* The longest prefix of whole pages. */
static void test_longest_prefix(void **state)
{
    (void)state;
    struct pages *p = open_pool(16, true, UINT64_MAX);
    struct table a = new_table(p), b = new_table(p);
    for (int i = 0; i < 5; i++) assert_true(fill(p, &a, i < 3 ? one : two, 1));
    const int32_t *ask[] = {one, one, one, three, two};
    uint32_t n = 0;
    while (n < 5 && find(p, &b, ask[n], 2) == PAGES_HIT) n++;
    assert_int_equal(n, 3);
    for (uint32_t i = 0; i < 3; i++) assert_int_equal(a.pages[i], b.pages[i]);
    release(p, &a);
    release(p, &b);
    close_pool(p);
}

/* What a Step writes is read from the next Step on. */
static void test_same_step(void **state)
{
    (void)state;
    struct pages *p = open_pool(4, true, UINT64_MAX);
    struct table a = new_table(p), b = new_table(p);
    assert_true(fill(p, &a, one, 5));
    assert_int_equal(find(p, &b, one, 5), PAGES_SOON);
    assert_int_equal(pages_view(p, a.pages[0]).count, 1);
    assert_int_equal(find(p, &b, one, 6), PAGES_HIT);
    release(p, &a);
    release(p, &b);
    close_pool(p);
}

/* Leaves are evicted before their parents, and the least recently used chain first. */
static void test_leaves_first(void **state)
{
    (void)state;
    struct pages *p = open_pool(5, true, UINT64_MAX);
    struct table a = new_table(p), b = new_table(p), c = new_table(p);
    assert_true(fill(p, &a, one, 1) && fill(p, &a, two, 1) && fill(p, &a, three, 1));
    assert_true(fill(p, &b, two, 1) && fill(p, &b, two, 1));
    release(p, &a);
    release(p, &b);
    for (int i = 0; i < 3; i++) { /* three new pages: the whole older chain, from its end */
        uint32_t page;
        assert_true(pages_take(p, &page));
        c.pages[c.n++] = page;
    }
    assert_int_equal(find(p, &a, one, 9), PAGES_NONE);
    assert_int_equal(find(p, &b, two, 9), PAGES_HIT);
    assert_int_equal(find(p, &b, two, 9), PAGES_HIT);
    release(p, &b);
    release(p, &c);
    close_pool(p);
}

/* With a hash that is the same for all pages, hits are as right and as many as with a good one. */
static void test_collisions(void **state)
{
    (void)state;
    uint64_t hits[2] = {0, 0};
    for (int forced = 0; forced < 2; forced++) {
        struct pages *p = open_pool(32, true, forced ? 0 : UINT64_MAX);
        struct rng rng = {5};
        for (uint64_t step = 1; step < 4000; step++) {
            struct table t = new_table(p);
            int32_t tokens[5][SIZE];
            bool missed = false;
            for (int i = 0; i < 5; i++) {
                for (int k = 0; k < SIZE; k++) tokens[i][k] = (int32_t)rng_below(&rng, 2) * 9;
                if (!missed && find(p, &t, tokens[i], step) == PAGES_HIT) {
                    struct page_view v = pages_view(p, t.pages[i]);
                    assert_memory_equal(v.tokens, tokens[i], sizeof tokens[i]);
                    uint64_t parent = i ? pages_view(p, t.pages[i - 1]).serial : 0;
                    assert_int_equal(v.parent, parent);
                    hits[forced]++;
                    continue;
                }
                missed = true;
                assert_true(fill(p, &t, tokens[i], step));
            }
            release(p, &t);
        }
        close_pool(p);
    }
    assert_true(hits[0] > 1000);
    assert_int_equal(hits[0], hits[1]);
}

/* With a hash that is the same for all pages, one tenant's pages are still not another's. */
static void test_tenants_whose_hashes_collide(void **state)
{
    (void)state;
    struct pages *p = open_pool(4, true, 0);
    struct table a = {.walk = pages_root(p, 1)}, b = {.walk = pages_root(p, 2)};
    assert_true(fill(p, &a, one, 1) && fill(p, &a, two, 1));
    assert_int_equal(find(p, &b, one, 9), PAGES_NONE);
    assert_true(fill(p, &b, one, 9)); /* a page of its own */
    assert_int_not_equal(a.pages[0], b.pages[0]);
    assert_int_equal(find(p, &b, two, 10), PAGES_NONE);
    release(p, &a);
    release(p, &b);
    close_pool(p);
}

/* A recently used parent outlives an older leaf, even after its own last child was evicted. */
static void test_a_parent_used_lately(void **state)
{
    (void)state;
    struct pages *p = open_pool(4, true, UINT64_MAX);
    struct table old = new_table(p), a = new_table(p), b = new_table(p);
    uint32_t page;
    assert_true(fill(p, &a, one, 1) && fill(p, &a, two, 1));
    release(p, &a); /* the parent and its child: the oldest */
    assert_true(fill(p, &old, three, 2));
    release(p, &old);
    assert_int_equal(find(p, &b, one, 3), PAGES_HIT);
    release(p, &b);                    /* the parent alone is used again: it is the newest now */
    assert_true(pages_take(p, &page)); /* the one that is free, */
    assert_true(pages_take(p, &page)); /* the child's, */
    assert_true(pages_take(p, &page)); /* and the old leaf's */
    assert_int_equal(find(p, &old, three, 4), PAGES_NONE);
    assert_int_equal(find(p, &b, one, 4), PAGES_HIT);
    close_pool(p);
}

/* 40 tokens, cut to 10, cut to none: a table reads 40, 10 and 0 positions. The page in which the
 * table is cut stays as it is for others; what is left of it is written again in a new page. */
static void test_forty_ten_none(void **state)
{
    (void)state;
    struct pages *p = open_pool(16, true, UINT64_MAX);
    struct table a = new_table(p), b = new_table(p);
    for (int32_t i = 0; i < 40 / SIZE; i++)
        assert_true(fill(p, &a, (const int32_t[SIZE]){i, i, i, i}, 1));
    assert_int_equal(reads(p, &a), 40);
    while (a.n > 10 / SIZE) pages_drop(p, a.pages[--a.n]);
    uint32_t tail;
    assert_true(pages_take(p, &tail)); /* positions 8 and 9; it is not whole and enters nothing */
    assert_int_equal(reads(p, &a) + 10 % SIZE, 10);
    assert_int_equal(pages_stats(p).n_held, 3);
    pages_drop(p, tail);
    release(p, &a);
    assert_int_equal(reads(p, &a), 0);
    struct pages_stats s = pages_stats(p);
    assert_int_equal(s.n_held, 0);
    assert_int_equal(s.n_cached, 10);
    assert_int_equal(s.n_free, 6);
    for (int32_t i = 0; i < 40 / SIZE; i++) /* what was there is found as it was */
        assert_int_equal(find(p, &b, (const int32_t[SIZE]){i, i, i, i}, 2), PAGES_HIT);
    assert_int_equal(reads(p, &b), 40);
    release(p, &b);
    close_pool(p);
}

/* A child shares its parent's first pages and goes on differently: the parent's pages, counts and
 * tokens stay. */
static void test_a_child_grows(void **state)
{
    (void)state;
    struct pages *p = open_pool(8, true, 0);
    struct table parent = new_table(p), child = new_table(p);
    assert_true(fill(p, &parent, one, 1) && fill(p, &parent, two, 1) && fill(p, &parent, three, 1));
    struct table before = parent;
    assert_int_equal(find(p, &child, one, 2), PAGES_HIT);
    assert_int_equal(find(p, &child, two, 2), PAGES_HIT);
    for (int i = 0; i < 3; i++) assert_true(fill(p, &child, i == 1 ? three : two, 3));
    assert_memory_equal(parent.pages, before.pages, sizeof before.pages);
    assert_int_equal(reads(p, &parent), 12);
    assert_int_equal(reads(p, &child), 20);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(pages_view(p, parent.pages[i]).count, i < 2 ? 2 : 1);
        for (uint32_t k = 2; k < child.n; k++)
            assert_int_not_equal(parent.pages[i], child.pages[k]);
    }
    release(p, &child);
    assert_int_equal(reads(p, &parent), 12);
    release(p, &parent);
    close_pool(p);
}

/* pages_available says exactly how many can be had; one more than that is refused, and changes
 * nothing of any page. */
static void test_out_of_pages(void **state)
{
    (void)state;
    enum { N = 6 };
    struct pages *p = open_pool(N, true, UINT64_MAX);
    struct table a = new_table(p), b = new_table(p);
    assert_true(fill(p, &a, one, 1) && fill(p, &a, two, 1));
    assert_true(fill(p, &b, three, 1));
    release(p, &b); /* two are held, one is cached, three are free */
    uint32_t page, n = 0, available = pages_available(p);
    assert_int_equal(available, 4);
    for (; pages_take(p, &page); n++) assert_int_equal(pages_available(p), available - n - 1);
    assert_int_equal(n, available);
    struct page_view before[N];
    struct pages_stats stats = pages_stats(p), after;
    for (uint32_t i = 0; i < N; i++) before[i] = pages_view(p, i);
    page = 77;
    for (int i = 0; i < 3; i++) assert_false(pages_take(p, &page));
    assert_int_equal(page, 77);
    after = pages_stats(p);
    assert_true(same_stats(stats, after));
    for (uint32_t i = 0; i < N; i++) {
        struct page_view v = pages_view(p, i);
        assert_int_equal(v.count, before[i].count);
        assert_int_equal(v.serial, before[i].serial);
        assert_int_equal(v.free, before[i].free);
    }
    assert_int_equal(reads(p, &a), 8);
    close_pool(p);
}

/* The core's seed of the hash covers cluster, model, KV type and page size; the root, the tenant.
 */
static void test_what_the_hash_covers(void **state)
{
    (void)state;
    enum { VARIANTS = 6 };
    struct hash128 roots[VARIANTS];
    for (int i = 0; i < VARIANTS; i++) {
        struct core_config k = config();
        if (i == 1) k.model_digest++;
        if (i == 2) k.kv_type++;
        if (i == 3) k.page *= 2;
        if (i == 4) k.hash_seed++;
        core_close(core_open(&k));
        struct index *x = index_open(&opened);
        roots[i] = index_root(x, i == 5 ? 2 : 1).hash;
        index_close(x);
        for (int m = 0; m < i; m++)
            assert_false(roots[m].lo == roots[i].lo && roots[m].hi == roots[i].hi);
    }
}

/* 100,000 random takes, extensions, forks and releases: free + used = all, and a page's count is
 * how many tables have it, recounted here. A page that is shared is never taken for writing. */
static void test_random(void **state)
{
    (void)state;
    enum { N = 40, TABLES = 12 };
    struct pages *p = open_pool(N, true, 7);
    struct table t[TABLES];
    struct rng rng = {11};
    for (int i = 0; i < TABLES; i++) t[i] = new_table(p);
    for (uint64_t step = 1; step <= 100000; step++) {
        struct table *x = &t[rng_below(&rng, TABLES)];
        const struct table *y = &t[rng_below(&rng, TABLES)];
        int32_t tokens[SIZE] = {(int32_t)rng_below(&rng, 3), 0, 0, 0};
        struct table child = new_table(p);
        uint64_t kind = rng_below(&rng, 8);
        if (kind == 0) {
            release(p, x);
        } else if (kind == 1 && x != y) { /* a child shares its parent's pages, and changes none */
            release(p, x);
            for (uint32_t i = 0; i < y->n; i++) {
                int32_t same[SIZE];
                memcpy(same, pages_view(p, y->pages[i]).tokens, sizeof same);
                assert_int_equal(find(p, &child, same, step), PAGES_HIT);
                assert_int_equal(child.pages[i], y->pages[i]);
            }
            *x = child;
        } else if (x->n < TOKENS / SIZE && find(p, x, tokens, step) != PAGES_HIT) {
            struct pages_stats before = pages_stats(p);
            if (!fill(p, x, tokens, step)) { /* out of pages: nothing has changed */
                struct pages_stats after = pages_stats(p);
                assert_int_equal(before.n_held, N);
                assert_true(same_stats(before, after));
                x->walk.has_next = false; /* other tokens will come next */
            }
        }
        uint32_t count[N] = {0}, held = 0;
        for (int i = 0; i < TABLES; i++) { /* whatever one does, the others read the same */
            assert_int_equal(reads(p, &t[i]), t[i].n * SIZE);
            for (uint32_t k = 0; k < t[i].n; k++) count[t[i].pages[k]]++;
        }
        for (uint32_t i = 0; i < N; i++) {
            assert_int_equal(pages_view(p, i).count, count[i]);
            held += count[i] > 0;
        }
        struct pages_stats s = pages_stats(p);
        assert_int_equal(s.n_held, held);
        assert_int_equal(s.n_free + s.n_cached + s.n_held, N);
    }
    for (int i = 0; i < TABLES; i++) release(p, &t[i]);
    assert_int_equal(pages_stats(p).n_held, 0);
    pages_clear(p);
    assert_int_equal(pages_stats(p).n_free, N);
    close_pool(p);
}

/* ---- promises ---- */

static void drop_twice(struct pages *p)
{
    uint32_t page = 0;
    (void)pages_take(p, &page);
    pages_drop(p, page);
    pages_drop(p, page);
}

static void drop_a_stranger(struct pages *p)
{
    pages_drop(p, 4);
}

static void enter_a_free_page(struct pages *p)
{
    static const int32_t tokens[SIZE] = {1, 2, 3, 4};
    struct prefix walk = pages_root(p, 0);
    (void)pages_enter(p, &walk, tokens, 1, 2);
}

static void keep_it(struct pages *p)
{
    uint32_t page;
    (void)pages_take(p, &page);
}

/* A broken promise about a page's count ends the process: else one page might be given to two. */
static void test_promises(void **state)
{
    (void)state;
    const struct {
        void (*breach)(struct pages *p);
        bool ends;
    } cases[] = {
        {keep_it, false}, {drop_twice, true}, {drop_a_stranger, true}, {enter_a_free_page, true}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int status;
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            (void)close(STDERR_FILENO);
            cases[i].breach(open_pool(4, true, UINT64_MAX));
            _exit(0);
        }
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status) == cases[i].ends);
        if (cases[i].ends) assert_int_equal(WTERMSIG(status), SIGABRT);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_least_recently_used),
        cmocka_unit_test(test_same_key_twice),
        cmocka_unit_test(test_no_capacity),
        cmocka_unit_test(test_hash),
        cmocka_unit_test(test_longest_prefix),
        cmocka_unit_test(test_same_step),
        cmocka_unit_test(test_leaves_first),
        cmocka_unit_test(test_collisions),
        cmocka_unit_test(test_tenants_whose_hashes_collide),
        cmocka_unit_test(test_a_parent_used_lately),
        cmocka_unit_test(test_forty_ten_none),
        cmocka_unit_test(test_a_child_grows),
        cmocka_unit_test(test_out_of_pages),
        cmocka_unit_test(test_what_the_hash_covers),
        cmocka_unit_test(test_random),
        cmocka_unit_test(test_promises),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
