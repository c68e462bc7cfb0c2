/* Clients' calls for embeddings, through the shell's real turns (tests/lib/shell_world.h). */
#include "tests/lib/shell_world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#define CLIENT WORLD_CLIENT

/* A prompt's embedding is told once, with the end; and again where the client asks on a new
 * connection. */
static void test_embedding(void **state)
{
    (void)state;
    struct world *w = world_open("ctx: 128\n");
    struct msg_generate g = world_ask(40, 5);
    g.embed = true;
    g.draft = "off";
    world_generate(w, 0, CLIENT, 1, 0, &g);
    world_run(w, 100);
    world_expect_end(w, 1, STATUS_OK, "");
    const struct seen *x = world_seen(w, 1);
    assert_true(x->n_embedding == WORLD_WIDTH && x->embedding[0] == 40 && x->embedding[7] == 47);
    assert_true(x->n_tokens == 0 && !x->text[0] && !x->finish[0] && x->n_prompt == 40);
    g.prompt_tokens = NULL; /* a text, which is tokenised first */
    g.n_prompt_tokens = 0;
    g.prompt = "bcd";
    world_generate(w, 0, CLIENT, 2, 0, &g);
    world_turn(w);
    world_wait_text(w);
    w->paused = true;
    world_run(w, 50);
    world_generate(w, 1, CLIENT, 2, 0, &g); /* it joins the call */
    world_run(w, 20);
    w->paused = false;
    world_run(w, 100);
    world_expect_end(w, 2, STATUS_OK, "");
    x = world_seen(w, 2);
    assert_true(x->n_embedding == WORLD_WIDTH && x->embedding[0] == (float)x->n_prompt);
    w->run_error = "a stage failed at it";
    world_generate(w, 0, CLIENT, 3, 0, &g);
    world_turn(w);
    world_wait_text(w);
    world_run(w, 100);
    world_expect_end(w, 3, STATUS_INTERNAL, "a stage failed");
    assert_int_equal(world_seen(w, 3)->n_embedding, 0);
    assert_int_equal(w->s->count.embeddings, 2); /* of those that were told, */
    assert_int_equal(w->s->count.embedding_tokens, 40 + world_seen(w, 2)->n_prompt);
    world_expect_idle(w);
    world_close(w);
}

/* What an embedding cannot have is refused by the field that asks for it. */
static void test_embed_alone(void **state)
{
    (void)state;
    static const int32_t received[] = {3};
    static const char *const words[] = {"not with 'format_json'", "'samples' must be 1",
                                        "not with 'received'",
                                        "not with 'received' or 'from_index'"};
    struct world *w = world_open("ctx: 64\n");
    for (uint64_t i = 0; i < 4; i++) {
        struct msg_generate g = world_ask(3, 2);
        g.embed = true;
        if (i == 0) g.format = "{\"type\": \"json_object\"}";
        if (i == 1) g.samples = 2;
        if (i == 2) g.received = received, g.n_received = 1;
        if (i == 3) g.from_index = 1;
        world_generate(w, 0, CLIENT, 1 + i, 0, &g);
        world_run(w, 50);
        world_expect_end(w, 1 + i, STATUS_INVALID_ARGUMENT, words[i]);
        world_expect_end(w, 1 + i, STATUS_INVALID_ARGUMENT, "field 'embed'");
    }
    world_expect_idle(w);
    world_close(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_embedding),
        cmocka_unit_test(test_embed_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
