/* The cluster's index: which replicas hold a prefix, and what is left when some no longer do. */
#include "coordinator/core/index.h"

#include "common/base/rng.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

enum { SIZE = 4, REPLICAS = 4, PAGES = 16, DEPTH = 5 };

static struct index *open_index(uint64_t mask)
{
    struct index_config k = {
        .n_replicas = REPLICAS, .page_size = SIZE, .seed = {1, 2}, .hash_mask = mask};
    struct index *x = index_open(&k);
    for (uint32_t r = 0; r < REPLICAS; r++) index_set_pool(x, r, PAGES);
    return x;
}

/* Pages of tokens: page i is `first` + i, four times. */
static void make(int32_t first, int32_t *ret)
{
    for (int i = 0; i < DEPTH * SIZE; i++) ret[i] = first + i / SIZE;
}

/* The replica holds the first n pages of these tokens, from its page `at` on. */
static struct prefix enter(struct index *x, uint32_t replica, const int32_t *tokens, uint32_t n,
                           uint32_t at)
{
    struct prefix walk = index_root(x, 0);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t page = index_find(x, replica, &walk, tokens + i * SIZE);
        if (page == INDEX_NONE)
            index_enter(x, replica, &walk, tokens + i * SIZE, 1, at++);
        else
            index_follow(x, replica, &walk, page);
    }
    return walk;
}

/* How many of the first n pages each replica holds, in `expected`. */
static void expect(const struct index *x, const int32_t *tokens, uint32_t n,
                   const uint32_t *expected)
{
    uint32_t held[REPLICAS];
    index_match(x, 0, tokens, n, held);
    for (uint32_t r = 0; r < REPLICAS; r++)
        if (held[r] != expected[r])
            fail_msg("replica %u holds %u pages, not %u", r, held[r], expected[r]);
    for (uint32_t r = 0; r < REPLICAS; r++)
        assert_int_equal(index_held(x, r, 0, tokens, n).depth, expected[r]);
}

static void test_match(void **state)
{
    (void)state;
    struct index *x = open_index(UINT64_MAX);
    int32_t a[DEPTH * SIZE], b[DEPTH * SIZE];
    make(10, a);
    make(10, b);
    b[4 * SIZE] = 99; /* differs in the last page */
    (void)enter(x, 0, a, 5, 0);
    (void)enter(x, 1, a, 2, 3);
    (void)enter(x, 3, b, 5, 7);
    expect(x, a, 5, (uint32_t[]){5, 2, 0, 4});
    expect(x, b, 5, (uint32_t[]){4, 2, 0, 5});
    expect(x, a, 3, (uint32_t[]){3, 2, 0, 3}); /* no more than is asked for */
    expect(x, a, 0, (uint32_t[]){0, 0, 0, 0});
    uint32_t held[REPLICAS];
    index_match(x, 7, a, 5, held); /* another tenant's */
    for (uint32_t r = 0; r < REPLICAS; r++) assert_int_equal(held[r], 0);
    index_close(x);
}

/* What one replica gives up the others still hold; what is entered again is found again. */
static void test_removed_from_one(void **state)
{
    (void)state;
    struct index *x = open_index(UINT64_MAX);
    int32_t a[DEPTH * SIZE];
    make(10, a);
    for (uint32_t r = 0; r < 3; r++) (void)enter(x, r, a, 5, 2 * r);
    assert_int_equal(index_remove(x, 1, 2 + 4), 2 + 3); /* its parent is a leaf now */
    assert_int_equal(index_remove(x, 1, 2 + 3), 2 + 2);
    expect(x, a, 5, (uint32_t[]){5, 3, 5, 0});
    index_clear(x, 0);
    expect(x, a, 5, (uint32_t[]){0, 3, 5, 0});
    (void)enter(x, 0, a, 4, 9);
    (void)enter(x, 1, a, 5, 9);
    expect(x, a, 5, (uint32_t[]){4, 5, 5, 0});
    for (uint32_t r = 0; r < REPLICAS; r++) index_clear(x, r);
    expect(x, a, 5, (uint32_t[]){0, 0, 0, 0});
    index_close(x);
}

/* A replica finds its own pages only, each with a serial that none has had. */
static void test_pages_are_its_own(void **state)
{
    (void)state;
    struct index *x = open_index(UINT64_MAX);
    int32_t a[DEPTH * SIZE];
    make(10, a);
    (void)enter(x, 0, a, 2, 5);
    struct prefix walk = index_root(x, 0);
    assert_int_equal(index_find(x, 1, &walk, a), INDEX_NONE);
    assert_int_equal(index_find(x, 0, &walk, a), 5);
    (void)enter(x, 1, a, 1, 8);
    assert_int_equal(index_find(x, 1, &walk, a), 8);
    index_follow(x, 1, &walk, 8);
    assert_int_equal(index_find(x, 1, &walk, a + SIZE), INDEX_NONE);
    struct index_entry mine = index_entry_of(x, 0, 5), theirs = index_entry_of(x, 1, 8);
    assert_int_not_equal(mine.serial, theirs.serial);
    assert_memory_equal(theirs.tokens, a, SIZE * sizeof *a);
    assert_int_equal(index_entry_of(x, 0, 6).parent, mine.serial);
    assert_int_equal(index_entry_of(x, 1, 5).serial, 0);
    uint64_t before = theirs.serial;
    (void)index_remove(x, 1, 8);
    (void)enter(x, 1, a, 1, 8);
    assert_int_not_equal(index_entry_of(x, 1, 8).serial, before);
    index_close(x);
}

/* A pool of another size holds nothing; the other replicas' entries stay, also where the table of
 * buckets has grown. */
static void test_another_pool(void **state)
{
    (void)state;
    struct index *x = open_index(UINT64_MAX);
    int32_t a[DEPTH * SIZE];
    make(10, a);
    for (uint32_t r = 0; r < REPLICAS; r++) (void)enter(x, r, a, 5, 0);
    index_set_pool(x, 2, 1000);
    expect(x, a, 5, (uint32_t[]){5, 5, 0, 5});
    (void)enter(x, 2, a, 5, 990);
    expect(x, a, 5, (uint32_t[]){5, 5, 5, 5});
    index_set_pool(x, 2, 0);
    expect(x, a, 5, (uint32_t[]){5, 5, 0, 5});
    index_close(x);
}

static struct index_node *promise(struct index *x, uint32_t replica, const int32_t *tokens,
                                  uint32_t n_pages)
{
    uint32_t held[REPLICAS];
    struct index_found found = index_match(x, 0, tokens, n_pages, held);
    return index_promise(x, replica, &found, tokens, n_pages);
}

/* Back along what was found: the pages of one replica, and none of what it is only promised. */
static void test_back(void **state)
{
    (void)state;
    struct index *x = open_index(UINT64_MAX);
    int32_t a[DEPTH * SIZE];
    uint32_t held[REPLICAS];
    make(10, a);
    (void)enter(x, 0, a, 5, 0);
    (void)enter(x, 1, a, 2, 8);
    struct index_node *soon = promise(x, 1, a, 4);
    struct index_found found = index_match(x, 0, a, 5, held);
    struct index_found mine = index_held(x, 0, 0, a, 5), theirs = index_held(x, 1, 0, a, 5);
    assert_int_equal(mine.depth, 5);
    assert_int_equal(theirs.depth, 4);
    for (uint32_t i = 5; i-- > 0;) {
        assert_int_equal(index_back(&found, 1), i < 2 ? 8 + i : INDEX_NONE);
        assert_int_equal(index_back(&mine, 0), i);
        assert_int_equal(mine.depth, i);
    }
    for (uint32_t i = 4; i-- > 0;)
        assert_int_equal(index_back(&theirs, 1), i < 2 ? 8 + i : INDEX_NONE);
    assert_null(theirs.last);
    index_settle(x, 1, soon);
    index_close(x);
}

/* What is promised counts like what is held until it is settled, and is not found as a page. */
static void test_promises(void **state)
{
    (void)state;
    struct index *x = open_index(UINT64_MAX);
    int32_t a[DEPTH * SIZE];
    make(10, a);
    (void)enter(x, 0, a, 2, 0);
    struct index_node *first = promise(x, 1, a, 4);
    struct index_node *second = promise(x, 1, a, 3);
    struct index_node *both = promise(x, 0, a, 5);
    expect(x, a, 5, (uint32_t[]){5, 4, 0, 0});
    struct prefix walk = index_root(x, 0);
    assert_int_equal(index_find(x, 1, &walk, a), INDEX_NONE);
    index_settle(x, 1, first);
    expect(x, a, 5, (uint32_t[]){5, 3, 0, 0});
    (void)enter(x, 1, a, 3, 7); /* it has come */
    index_settle(x, 1, second);
    expect(x, a, 5, (uint32_t[]){5, 3, 0, 0});
    index_clear(x, 0); /* promises outlive a generation: whoever made them settles them */
    expect(x, a, 5, (uint32_t[]){5, 3, 0, 0});
    index_settle(x, 0, both);
    expect(x, a, 5, (uint32_t[]){0, 3, 0, 0});
    assert_null(promise(x, 0, a, 0));
    index_close(x);
}

/* Promises have a limit; what is beyond it is not promised. */
static void test_many_promises(void **state)
{
    (void)state;
    struct index *x = open_index(UINT64_MAX);
    int32_t a[DEPTH * SIZE];
    make(10, a);
    struct index_node *p = NULL, *first = promise(x, 1, a, 5);
    for (uint32_t n = DEPTH; n + 4 <= INDEX_PROMISES; n += 4) p = promise(x, 1, a, 4);
    assert_non_null(p);
    assert_null(promise(x, 2, a, 4));
    index_settle(x, 1, first);
    assert_non_null(promise(x, 2, a, 4));
    expect(x, a, 5, (uint32_t[]){0, 4, 4, 0});
    for (uint32_t n = DEPTH; n + 4 <= INDEX_PROMISES; n += 4) index_settle(x, 1, p);
    expect(x, a, 5, (uint32_t[]){0, 0, 4, 0});
    index_settle(x, 2, promise(x, 2, a, 4));
    index_settle(x, 2, promise(x, 2, a, 4));
    index_close(x);
}

/* ---- random holders, recounted without the index ---- */

struct held { /* by one replica: of each of its pages, the chain of tokens that it ends */
    uint32_t depth;
    int32_t chain[DEPTH];
};

static uint32_t longest(const struct held *pages, const int32_t *chain)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < PAGES; i++)
        if (pages[i].depth > most &&
            memcmp(pages[i].chain, chain, pages[i].depth * sizeof *chain) == 0)
            most = pages[i].depth;
    return most;
}

static bool is_leaf(const struct held *pages, uint32_t page)
{
    const struct held *p = &pages[page];
    for (uint32_t i = 0; i < PAGES; i++)
        if (pages[i].depth == p->depth + 1 &&
            memcmp(pages[i].chain, p->chain, p->depth * sizeof *p->chain) == 0)
            return false;
    return true;
}

/* One of 2^5 chains of five pages, and its tokens. */
static void draw(struct rng *rng, int32_t *chain, int32_t *tokens)
{
    for (uint32_t i = 0; i < DEPTH; i++) {
        chain[i] = (int32_t)rng_below(rng, 2);
        for (uint32_t k = 0; k < SIZE; k++) tokens[i * SIZE + k] = chain[i];
    }
}

static void test_random(void **state)
{
    (void)state;
    static struct held pages[REPLICAS][PAGES];
    struct rng rng = {5};
    for (int mask = 0; mask < 3; mask++) {
        struct index *x = open_index(mask == 0 ? 0 : mask == 1 ? 3 : UINT64_MAX);
        memset(pages, 0, sizeof pages);
        for (int step = 0; step < 20000; step++) {
            int32_t chain[DEPTH], tokens[DEPTH * SIZE];
            uint32_t r = (uint32_t)rng_below(&rng, REPLICAS), page = INDEX_NONE;
            struct held *mine = pages[r];
            draw(&rng, chain, tokens);
            uint64_t kind = rng_below(&rng, 100);
            uint32_t depth = longest(mine, chain), at = (uint32_t)rng_below(&rng, PAGES);
            for (uint32_t i = 0; i < PAGES; i++)
                if (mine[i].depth == 0) page = i;
            if (kind == 0) {
                index_clear(x, r);
                memset(mine, 0, PAGES * sizeof *mine);
            } else if (kind < 60 && depth < DEPTH && page != INDEX_NONE) {
                (void)enter(x, r, tokens, depth + 1, page);
                mine[page].depth = depth + 1;
                memcpy(mine[page].chain, chain, sizeof chain);
            } else if (mine[at].depth && is_leaf(mine, at)) {
                uint32_t parent = index_remove(x, r, at);
                struct held was = mine[at];
                mine[at].depth = 0;
                bool leaf = parent != INDEX_NONE;
                if (leaf) assert_int_equal(mine[parent].depth, was.depth - 1);
                for (uint32_t i = 0; i < PAGES && was.depth > 1; i++)
                    if (mine[i].depth == was.depth - 1 &&
                        memcmp(mine[i].chain, was.chain, mine[i].depth * sizeof *chain) == 0)
                        assert_int_equal(is_leaf(mine, i), leaf && parent == i);
            }
            uint32_t expected[REPLICAS];
            for (uint32_t i = 0; i < REPLICAS; i++) expected[i] = longest(pages[i], chain);
            expect(x, tokens, DEPTH, expected);
        }
        index_close(x);
    }
}

static uint32_t common(const int32_t *a, const int32_t *b, uint32_t depth)
{
    uint32_t n = 0;
    while (n < depth && a[n] == b[n]) n++;
    return n;
}

/* The same with promises, which come and go, and whose pages are entered and given up meanwhile. */
static void test_random_promises(void **state)
{
    (void)state;
    enum { PROMISES = 6 };
    static struct held pages[REPLICAS][PAGES];
    static struct {
        struct index_node *node; /* NULL: there is none */
        uint32_t replica, depth;
        int32_t chain[DEPTH];
    } made[PROMISES];
    struct rng rng = {7};
    struct index *x = open_index(UINT64_MAX);
    for (int step = 0; step < 60000; step++) {
        int32_t chain[DEPTH], tokens[DEPTH * SIZE];
        uint32_t r = (uint32_t)rng_below(&rng, REPLICAS), page = INDEX_NONE;
        uint32_t at = (uint32_t)rng_below(&rng, PAGES), k = (uint32_t)rng_below(&rng, PROMISES);
        struct held *mine = pages[r];
        draw(&rng, chain, tokens);
        uint64_t kind = rng_below(&rng, 100);
        uint32_t depth = longest(mine, chain);
        for (uint32_t i = 0; i < PAGES; i++)
            if (mine[i].depth == 0) page = i;
        if (kind == 0) {
            index_clear(x, r);
            memset(mine, 0, PAGES * sizeof *mine);
        } else if (kind < 40 && made[k].node) {
            index_settle(x, made[k].replica, made[k].node);
            made[k].node = NULL;
        } else if (kind < 40) {
            made[k].replica = r;
            made[k].depth = 1 + (uint32_t)rng_below(&rng, DEPTH);
            made[k].node = promise(x, r, tokens, made[k].depth);
            memcpy(made[k].chain, chain, sizeof chain);
            assert_non_null(made[k].node);
        } else if (kind < 70 && depth < DEPTH && page != INDEX_NONE) {
            (void)enter(x, r, tokens, depth + 1, page);
            mine[page].depth = depth + 1;
            memcpy(mine[page].chain, chain, sizeof chain);
        } else if (mine[at].depth && is_leaf(mine, at)) {
            (void)index_remove(x, r, at);
            mine[at].depth = 0;
        }
        uint32_t expected[REPLICAS];
        for (uint32_t i = 0; i < REPLICAS; i++) expected[i] = longest(pages[i], chain);
        for (uint32_t i = 0; i < PROMISES; i++) {
            uint32_t n = made[i].node ? common(made[i].chain, chain, made[i].depth) : 0;
            if (n > expected[made[i].replica]) expected[made[i].replica] = n;
        }
        expect(x, tokens, DEPTH, expected);
    }
    for (uint32_t i = 0; i < PROMISES; i++)
        if (made[i].node) index_settle(x, made[i].replica, made[i].node);
    for (uint32_t r = 0; r < REPLICAS; r++) index_clear(x, r);
    for (int32_t first = 0; first < 2; first++) {
        int32_t tokens[DEPTH * SIZE];
        memset(tokens, 0, sizeof tokens);
        tokens[0] = first;
        expect(x, tokens, DEPTH, (uint32_t[]){0, 0, 0, 0});
    }
    index_close(x);
}

/* A prefix that many replicas hold, or are to hold: what each has is what it was given, in whatever
 * order they come and go. */
static void test_many_holders(void **state)
{
    (void)state;
    enum { MANY = 200, ROUNDS = 4000 };
    struct index_config k = {
        .n_replicas = MANY, .page_size = SIZE, .seed = {1, 2}, .hash_mask = UINT64_MAX};
    struct index *x = index_open(&k);
    struct rng rng = {5};
    int32_t tokens[DEPTH * SIZE];
    bool has[MANY] = {false};
    struct index_node *promised[MANY] = {NULL};
    uint32_t held[MANY], most = 0;
    make(10, tokens);
    for (uint32_t r = 0; r < MANY; r++) index_set_pool(x, r, PAGES);
    for (uint32_t n = 0; n < ROUNDS; n++) {
        uint32_t r = (uint32_t)rng_below(&rng, MANY), n_held = 0;
        struct index_found found = index_match(x, 0, tokens, DEPTH, held);
        for (uint32_t i = 0; i < MANY; i++) {
            assert_int_equal(held[i], has[i] || promised[i] ? DEPTH : 0);
            n_held += held[i] > 0;
        }
        most = n_held > most ? n_held : most;
        bool more = rng_below(&rng, 4) > 0 ? n < ROUNDS / 2 : n >= ROUNDS / 2;
        if (rng_below(&rng, 2)) {
            if (promised[r] && !more) {
                index_settle(x, r, promised[r]);
                promised[r] = NULL;
            } else if (!promised[r] && more) {
                promised[r] = index_promise(x, r, &found, tokens, DEPTH);
            }
        } else if (!has[r] && more) {
            (void)enter(x, r, tokens, DEPTH, 0);
            has[r] = true;
        } else if (has[r] && !more) {
            for (uint32_t page = DEPTH - 1; page != INDEX_NONE; page = index_remove(x, r, page))
                continue;
            has[r] = false;
        }
        index_stock(x);
    }
    assert_true(most > 100);
    index_close(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_match),
        cmocka_unit_test(test_back),
        cmocka_unit_test(test_removed_from_one),
        cmocka_unit_test(test_pages_are_its_own),
        cmocka_unit_test(test_another_pool),
        cmocka_unit_test(test_promises),
        cmocka_unit_test(test_many_promises),
        cmocka_unit_test(test_many_holders),
        cmocka_unit_test(test_random),
        cmocka_unit_test(test_random_promises),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
