/* Bodies of the gateway's requests: each is taken, or refused with a status and a text, and either
 * can be told in JSON. */
#include "coordinator/gateway/message.h"
#include "coordinator/gateway/response.h"
#include "tests/fuzz/fuzz.h"

#include <string.h>

static void check_fault(const struct fault *f)
{
    struct buf text = {0};
    struct json *j;
    fuzz_check((f->http == 400 || f->http == 503) && f->text[0]);
    fault_write(f, &text);
    fuzz_check(json_read(text.data, text.len, &j, NULL) == 0);
    json_free(j);
    buf_close(&text);
}

static void check_ask(const struct ask *a)
{
    const struct client_request *r = &a->request;
    struct json *j;
    fuzz_check(sampling_check(&r->sampling, NULL) == 0);
    fuzz_check(r->n_stops <= CLIENT_STOPS_MAX && r->samples == a->best_of && a->n <= a->best_of);
    uint32_t most = a->kind == ASK_EMBEDDING ? ASK_INPUTS_MAX : ASK_CHOICES_MAX;
    fuzz_check(a->n_prompts >= 1 && a->n_prompts * a->best_of <= most);
    for (uint32_t i = 0; a->kind != ASK_CHAT && i < a->n_prompts; i++)
        fuzz_check(a->prompts[i].text || a->prompts[i].n_tokens);
    if (a->kind != ASK_CHAT) return;
    fuzz_check(json_read(r->chat, strlen(r->chat), &j, NULL) == 0);
    json_free(j);
}

/* Anthropic's bodies, and those of the Responses API, become a chat's, or are refused. */
static void check_translated(const char *body, size_t bytes, bool response)
{
    struct json *doc, *chat, *echo = NULL;
    struct fault f = {0};
    struct buf text = {0};
    struct ask a;
    if (json_read(body, bytes, &doc, NULL) < 0) return;
    chat = response ? response_translate(doc, &echo, &f) : message_translate(doc, bytes & 1, &f);
    json_free(doc);
    json_free(echo);
    if (!chat) {
        check_fault(&f);
        return;
    }
    json_write(chat, &text);
    json_free(chat);
    if (ask_read(ASK_CHAT, text.data, text.len, &a, &f) < 0) {
        if (response) response_rename(&f);
        check_fault(&f);
    } else {
        check_ask(&a);
        ask_close(&a);
    }
    buf_close(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct ask a;
    struct fault f = {0};
    if (size == 0) return 0;
    if (data[0] % 4 == 2) {
        check_translated((const char *)data + 1, size - 1, data[0] & 4);
        return 0;
    }
    enum ask_kind kind = data[0] % 8 == 7 ? ASK_EMBEDDING : data[0] & 1 ? ASK_CHAT : ASK_COMPLETION;
    if (ask_read(kind, (const char *)data + 1, size - 1, &a, &f) < 0) {
        check_fault(&f);
        return 0;
    }
    check_ask(&a);
    ask_close(&a);
    return 0;
}
