#include "coordinator/model_file.h"

#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/model/vocab_file.h"

#include <string.h>

int model_file_open(const char *path, bool with_model, const char *pre, struct model_file *ret,
                    struct errmsg *em)
{
    struct model_file f = {0};
    struct errmsg unread = {0};
    int rc = weights_open(path, &f.weights, em);
    if (rc < 0) return rc;
    if (with_model) rc = arch_read(f.weights, &f.dims, em);
    if (rc == 0 && with_model && arch_unread(f.weights, &unread) > 0)
        log_warn("%s: %s", path, unread.text);
    const struct vocab_file_options vocab = {.pre = pre};
    if (rc == 0) rc = vocab_file_open(f.weights, &vocab, &f.vocab, em);
    if (rc < 0) {
        model_file_close(&f);
        return err_wrap(em, rc, "%s", path);
    }
    f.path = mem_strdup(path);
    *ret = f;
    return 0;
}

void model_file_close(struct model_file *f)
{
    vocab_close(f->vocab);
    weights_close(f->weights);
    mem_free(f->path);
    *f = (struct model_file){0};
}
