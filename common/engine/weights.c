#include "common/engine/weights.h"

#include "common/base/mem.h"
#include "common/engine/weights_dir.h"

#include <string.h>

int weights_open(const char *path, struct weights **ret, struct errmsg *em)
{
    struct weights *w = mem_zalloc(sizeof *w);
    int rc = weights__gguf_open(w, path, em);
    if (rc < 0)
        weights_close(w);
    else
        *ret = w;
    return rc;
}

int weights_parse(const uint8_t *data, size_t size, uint64_t file_bytes, struct weights **ret,
                  struct errmsg *em)
{
    struct weights *w = mem_zalloc(sizeof *w);
    int rc = weights__gguf_parse(w, data, size, file_bytes, em);
    if (rc < 0)
        weights_close(w);
    else
        *ret = w;
    return rc;
}

void weights_close(struct weights *w)
{
    if (!w) return;
    for (uint32_t i = 0; i < w->n_files; i++) mem_free(w->files[i].path);
    mem_free(w->files);
    mem_free(w->tensors);
    smap_close(&w->by_name);
    if (w->close_format) w->close_format(w->format);
    mem_free(w);
}

uint32_t weights_n_files(const struct weights *w)
{
    return w->n_files;
}

const char *weights_path(const struct weights *w, uint32_t file)
{
    return w->files[file].path;
}

uint64_t weights_file_bytes(const struct weights *w)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < w->n_files; i++) n += w->files[i].file_bytes;
    return n;
}

uint64_t weights_header_bytes(const struct weights *w)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < w->n_files; i++) n += w->files[i].header_bytes;
    return n;
}

const struct meta *weights_meta(const struct weights *w)
{
    return w->meta;
}

size_t weights_n_tensors(const struct weights *w)
{
    return w->n_tensors;
}

const struct weights_tensor *weights_tensor_at(const struct weights *w, size_t idx)
{
    return &w->tensors[idx];
}

const struct weights_tensor *weights_tensor(const struct weights *w, const char *name)
{
    const uint32_t *i = smap_get(&w->by_name, name, strlen(name));
    return i ? &w->tensors[*i] : NULL;
}

uint64_t weights_digest(const struct weights *w)
{
    return w->digest;
}
