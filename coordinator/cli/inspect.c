/* Looking into files: `inspect` (metadata and tensors) and `tokenize` (text to ids). */
#include "coordinator/cli/cmd.h"

#include "common/base/buf.h"
#include "common/base/mem.h"
#include "common/base/utf8.h"
#include "common/text/json.h"
#include "coordinator/model_file.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define STRING_SHOWN 120

/* What steers a terminal is shown as \xNN: control characters, DEL, C1 as UTF-8 has them, and bytes
 * that are no UTF-8. */
static void print_safe(const char *text, size_t n)
{
    for (size_t i = 0; i < n;) {
        int32_t c = 0;
        size_t used = utf8_char(text + i, n - i, &c);
        if (used && c >= 0x20 && c != 0x7f && (c < 0x80 || c >= 0xa0)) {
            (void)fwrite(text + i, 1, used, stdout);
        } else {
            used = used ? used : 1;
            for (size_t k = 0; k < used; k++) (void)printf("\\x%02x", (uint8_t)text[i + k]);
        }
        i += used;
    }
}

static double real_of(const struct meta_kv *kv)
{
    double d = 0.0;
    float f = 0.0f;
    if (kv->type == META_F64)
        memcpy(&d, kv->data, sizeof d);
    else if (meta_f32_at(kv, 0, &f))
        d = (double)f;
    return d;
}

static void kv_json(struct json *to, const struct meta_kv *kv)
{
    char key[META_KEY_BYTES_MAX + 1];
    struct meta_int i;
    (void)snprintf(key, sizeof key, "%.*s", (int)kv->key_len, kv->key);
    if (kv->type == META_ARRAY) {
        char text[64];
        int n = snprintf(text, sizeof text, "%s[%" PRIu64 "]", meta_type_name(kv->item_type),
                         kv->n_items);
        json_put_string(to, key, text, (size_t)n);
    } else if (kv->type == META_STRING) {
        json_put_string(to, key, (const char *)kv->data, (size_t)kv->data_bytes);
    } else if (kv->type == META_BOOL) {
        json_put_bool(to, key, kv->data[0] != 0);
    } else if (meta_int_at(kv, 0, &i)) {
        /* jansson's integers end at 2^63 - 1. */
        if (i.negative || i.value <= INT64_MAX)
            json_put_int(to, key, (int64_t)i.value);
        else
            json_put_real(to, key, (double)i.value);
    } else {
        json_put_real(to, key, real_of(kv));
    }
}

static void print_kv(const struct meta_kv *kv)
{
    struct meta_int i;
    print_safe(kv->key, kv->key_len);
    (void)printf(" = ");
    if (kv->type == META_ARRAY) {
        (void)printf("%s[%" PRIu64 "]\n", meta_type_name(kv->item_type), kv->n_items);
    } else if (kv->type == META_STRING) {
        bool cut = kv->data_bytes > STRING_SHOWN;
        (void)printf("\"");
        print_safe((const char *)kv->data, cut ? STRING_SHOWN : (size_t)kv->data_bytes);
        (void)printf("\"%s\n", cut ? "..." : "");
    } else if (kv->type == META_BOOL) {
        (void)printf("%s\n", kv->data[0] ? "true" : "false");
    } else if (meta_int_at(kv, 0, &i)) {
        if (i.negative)
            (void)printf("%" PRId64 "\n", (int64_t)i.value);
        else
            (void)printf("%" PRIu64 "\n", i.value);
    } else {
        (void)printf("%.9g\n", real_of(kv));
    }
}

static void inspect_json(const struct weights *w)
{
    struct json *j = json_new_object(), *kvs = json_new_object(), *tensors = json_new_array();
    struct json *files = json_new_array();
    for (uint32_t i = 0; i < weights_n_files(w); i++) {
        struct json *x = json_new_object();
        json_put_string(x, "path", weights_path(w, i), strlen(weights_path(w, i)));
        json_add(files, x);
    }
    for (size_t i = 0; i < weights_meta(w)->n; i++) kv_json(kvs, &weights_meta(w)->kvs[i]);
    for (size_t i = 0; i < weights_n_tensors(w); i++) {
        const struct weights_tensor *t = weights_tensor_at(w, i);
        struct json *x = json_new_object(), *dims = json_new_array();
        for (uint32_t d = 0; d < t->n_dims; d++) json_add_int(dims, (int64_t)t->dims[d]);
        const char *type = qtype_info((uint32_t)t->type)->name;
        json_put_string(x, "name", t->name, strlen(t->name));
        json_put_string(x, "type", type, strlen(type));
        json_put(x, "dims", dims);
        json_put_int(x, "file", t->file);
        json_put_int(x, "offset", (int64_t)t->offset);
        json_put_int(x, "bytes", (int64_t)t->bytes);
        json_add(tensors, x);
    }
    json_put_int(j, "file_bytes", (int64_t)weights_file_bytes(w));
    json_put_int(j, "header_bytes", (int64_t)weights_header_bytes(w));
    json_put(j, "files", files);
    json_put(j, "metadata", kvs);
    json_put(j, "tensors", tensors);
    json_print(j, stdout);
    json_free(j);
}

static void inspect_text(const struct weights *w)
{
    for (size_t i = 0; i < weights_meta(w)->n; i++) print_kv(&weights_meta(w)->kvs[i]);
    for (size_t i = 0; i < weights_n_tensors(w); i++) {
        const struct weights_tensor *t = weights_tensor_at(w, i);
        print_safe(t->name, strlen(t->name));
        (void)printf("%*s %-5s", strlen(t->name) < 40 ? 40 - (int)strlen(t->name) : 0, "",
                     qtype_info((uint32_t)t->type)->name);
        for (uint32_t d = 0; d < t->n_dims; d++)
            (void)printf("%s%" PRIu64, d ? " x " : " ", t->dims[d]);
        (void)printf("  %" PRIu64 " bytes at %" PRIu64, t->bytes, t->offset);
        if (weights_n_files(w) > 1) (void)printf(" of file %" PRIu32, t->file + 1);
        (void)printf("\n");
    }
}

int cmd_inspect(int argc, char **argv)
{
    bool json = false;
    const struct opt table[] = {
        CMD_OPT_JSON(&json),
        {0},
    };
    const char *path = NULL;
    size_t n_rest;
    int status;
    if (!cmd_options("flotilla inspect FILE [--json]", "  flotilla inspect model.gguf\n", table,
                     argc, argv, &path, 1, &n_rest, &status))
        return status;
    struct errmsg em = {0};
    if (!n_rest) {
        (void)err_set(&em, ERR_CONF, "needs a file");
        return cmd_fail("inspect", ERR_CONF, &em);
    }
    struct weights *w;
    int rc = weights_open(path, &w, &em);
    if (rc < 0) return cmd_fail("inspect", rc, &em);
    json ? inspect_json(w) : inspect_text(w);
    weights_close(w);
    return CMD_OK;
}

int cmd_read_stdin(struct buf *to, struct errmsg *em)
{
    char block[65536];
    size_t n;
    to->max = VOCAB_TEXT_BYTES_MAX;
    while ((n = fread(block, 1, sizeof block, stdin)) > 0)
        if (buf_append(to, block, n) < 0)
            return err_set(em, ERR_LIMIT, "stdin: more than %zu bytes", to->max);
    return ferror(stdin) ? err_set(em, ERR_IO, "stdin: read error") : 0;
}

int cmd_tokenize(int argc, char **argv)
{
    const char *path = NULL, *pre = NULL;
    bool json = false, special = false;
    const struct opt table[] = {
        {"--model", 'm', OPT_STRING, &path, 0, 0, NULL,
         "FILE  a GGUF file; one with a vocabulary alone will do"},
        {"--special", 0, OPT_FLAG, &special, 0, 0, NULL,
         "names of control tokens are those tokens"},
        CMD_OPT_PRE(&pre),
        CMD_OPT_JSON(&json),
        {0},
    };
    size_t n_rest;
    int status;
    if (!cmd_options("flotilla tokenize --model FILE < TEXT",
                     "  printf 'Hello  world' | flotilla tokenize --model smol.gguf --json\n",
                     table, argc, argv, NULL, 0, &n_rest, &status))
        return status;
    struct errmsg em = {0};
    if (!path) {
        (void)err_set(&em, ERR_CONF, "needs --model");
        return cmd_fail("tokenize", ERR_CONF, &em);
    }
    struct model_file f = {0};
    struct buf text = {0};
    struct tokens t = {0};
    int rc = model_file_open(path, false, pre, &f, &em);
    if (rc == 0) rc = cmd_read_stdin(&text, &em);
    if (rc == 0) rc = vocab_encode(f.vocab, text.data ? text.data : "", text.len, special, &t, &em);
    if (rc == 0 && json) {
        struct json *j = json_new_object();
        json_put(j, "tokens", json_tokens(t.ids, t.n));
        json_print(j, stdout);
        json_free(j);
    } else if (rc == 0) {
        for (size_t i = 0; i < t.n; i++) (void)printf("%s%" PRId32, i ? " " : "", t.ids[i]);
        (void)printf("\n");
    }
    mem_free(t.ids);
    buf_close(&text);
    model_file_close(&f);
    return rc < 0 ? cmd_fail("tokenize", rc, &em) : CMD_OK;
}
