/* The engine's only door: a slice of a model and its KV pages, and the step that runs rows of
 * tokens through it. It knows nothing of sockets, requests or text.
 *
 * A step is a list of runs; a run is consecutive positions of one sequence. A row at position p
 * writes the keys and values of p into the pages it is given and reads positions 0..p. The same
 * rows give the same bits beside any other rows, in any chunks, slices and number of threads.
 *
 * An engine belongs to one thread; its own pool works inside eng_step only. */
#ifndef FLOTILLA_ENGINE_ENGINE_H
#define FLOTILLA_ENGINE_ENGINE_H

#include "common/base/err.h"
#include "common/base/source.h"
#include "common/base/stats.h"
#include "common/engine/arch.h"
#include "common/engine/kern.h"
#include "common/engine/weights.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define ENG_ROWS_MAX 4096u

struct eng_options {
    const struct weights *weights;    /* the model's directory, borrowed during eng_open */
    uint32_t layer_first, layer_last; /* inclusive; the first layer brings the embedding, the last
                                         the output head */
    enum kv_type kv;
    uint32_t n_pages; /* KV pages of KV_PAGE positions */
    /* Pages of layers with a window, at most n_pages, which have numbers of their own then; 0: they
     * have n_pages, and the tables of the others. */
    uint32_t n_window_pages;
    uint32_t ctx;        /* most positions of one sequence; 0: as many as the pages hold */
    uint32_t rows_max;   /* rows of a step, 1..ENG_ROWS_MAX */
    uint32_t logits_max; /* rows of a step that want logits, 1..rows_max */
    unsigned threads;
    uint64_t room_bytes; /* memory that it may take, else it is refused unread; 0: no limit */
    const char *isa;     /* NULL: the best */
    source_read_fn read; /* reads extents of the model's files; read_ctx is its first argument */
    void *read_ctx;
    /* The hash that each tensor of the slice must have (content.h), in the order of
     * eng_slice_tensors. Another one ends the load with ERR_FORMAT. NULL: any. */
    const uint64_t *hashes;
    uint32_t n_hashes;
    /* Called while loading, from the loading thread; false ends the load with ERR_CANCELLED. The
     * bytes are those of the tensors, which are read, then those of the KV pool, which are touched.
     * May be NULL. */
    bool (*progress)(void *arg, uint64_t bytes_done, uint64_t bytes_total);
    void *progress_arg;
    atomic_ullong *moves; /* or NULL: raised with each layer of a step; borrowed until eng_close */
};

/* Instead of a number of rows that want logits: none does, and all are to be hidden rows
 * (eng_hidden). */
#define ENG_HIDDEN UINT32_MAX

struct eng_run {
    uint32_t first_pos;
    uint32_t n_rows;
    uint32_t n_logits;     /* the last n_logits rows want logits, or ENG_HIDDEN; 0 but on the last
                              slice */
    const int32_t *tokens; /* n_rows; read by the first slice only */
    const uint32_t *pages; /* page ids of positions 0 .. first_pos + n_rows - 1 */
    /* With n_window_pages: the same of layers with a window, from page window_first of the table
     * on, where what the first row sees begins or before. */
    uint32_t window_first;
    const uint32_t *window_pages;
};

struct eng_stats {
    uint64_t weights_bytes; /* packed weights in memory */
    uint64_t kv_bytes;
    uint64_t read_bytes; /* of tensor data, at load */
};

struct engine;

/* ERR_UNSUPPORTED names a type, an architecture or an instruction set, ERR_RANGE an option,
 * ERR_NOMEM the largest pool that fits; ERR_FORMAT: the file contradicts itself or the hashes; and
 * errors of o->read. */
int eng_open(const struct eng_options *o, struct engine **ret_engine, struct errmsg *em);
/* May be NULL. */
void eng_close(struct engine *e);

/* Runs a step. `in`: rows x hidden floats at any alignment, NULL on the first slice. *ret_out: rows
 * x hidden for the next slice, valid until the next step; or on the last slice the logits of the
 * first row that wants them, as eng_logits returns them. ERR_RANGE (nothing computed) for a token,
 * page or count out of range. Allocates nothing. */
int eng_step(struct engine *e, const struct eng_run *runs, uint32_t n_runs, const void *in,
             const float **ret_out, struct errmsg *em);

/* The last step's logits of row i, of all its rows that want them: vocab floats, valid until the
 * next call for another row and until the next step. They are computed for a group of rows at a
 * time, as many as there is room for (eng_sizes): the first with the step, another when one of its
 * rows is asked for. So ask in ascending order; rows that nobody asks for may cost nothing.
 * Allocates nothing. */
const float *eng_logits(struct engine *e, uint32_t i);

/* The last step's hidden rows: what the last layer hands out, behind the model's last norm. hidden
 * floats for each row of the runs that want them, in the order of the runs. Valid until the next
 * step. */
const float *eng_hidden(const struct engine *e);

/* A step is about to come: wakes the engine's threads. */
void eng_wake(struct engine *e);

const struct arch_dims *eng_dims(const struct engine *e);
/* The level of every kernel that this engine calls. */
const char *eng_isa(const struct engine *e);
/* The most rows whose products with weights of a type read tiles without unpacking panels to memory
 * first, as measured when the engine was opened: 1 where that never paid. 0: the slice multiplies
 * with no weights of this type (a number of GGUF), or its kernels read floats. */
uint32_t eng_few(const struct engine *e, uint32_t type);

/* Products (multiply and add) of a row with the quantised weights of the slice: of its layers, and
 * of the output head, which only rows that want logits are multiplied with. */
struct eng_products {
    uint64_t layers, head;
};
struct eng_products eng_products(const struct engine *e);

/* What kernels do. A duration is that of all that one thread does of it in one phase of a step
 * (stage.c), for all rows. */
enum eng_op {
    ENG_LINEAR, /* products: of queries, keys and values; attention's output; gate and up; down;
                   the head: five kinds of phases */
    ENG_ATTENTION,
    ENG_NORM,     /* norms of rows, quantised where a product follows */
    ENG_ROTATE,   /* head norms, RoPE, writing of keys and values */
    ENG_QUANTISE, /* rows that no norm precedes */
    ENG_GATE,     /* SiLU or GELU and the product with `up` */
    ENG_N_OPS
};
const char *eng_op_name(enum eng_op op);
/* These durations, of all threads together. May be called while a step runs. */
void eng_dispatch(const struct engine *e, enum eng_op op, struct stats_view *ret);
struct eng_stats eng_stats(const struct engine *e);

/* ERR_UNSUPPORTED: the model's heads do not fit the blocks of this KV type. */
int eng_kv_check(const struct arch_dims *d, enum kv_type kv, struct errmsg *em);
/* Bytes of the KV pool of a slice. n_window_pages: as in eng_options. */
uint64_t eng_kv_bytes(const struct arch_dims *d, enum kv_type kv, uint32_t layer_first,
                      uint32_t layer_last, uint64_t n_pages, uint64_t n_window_pages);
/* Bytes of KV for one page over n layers. */
size_t eng_page_bytes(const struct arch_dims *d, enum kv_type kv, uint32_t n_layers);
/* "f32", "f16", "q8_0" or "q4_0"; false for another name. */
bool eng_kv_parse(const char *name, enum kv_type *ret);
/* The tensors that a slice needs, each once, as indices into the directory. ERR_FORMAT,
 * ERR_UNSUPPORTED: one is missing, or has a shape or type that this engine does not compute;
 * ERR_LIMIT: more than idx_max. */
int eng_slice_tensors(const struct weights *w, const struct arch_dims *d, uint32_t layer_first,
                      uint32_t layer_last, uint32_t *ret_idx, uint32_t idx_max, uint32_t *ret_n,
                      struct errmsg *em);
/* Bytes in the file of the tensors that a slice needs. */
int eng_slice_bytes(const struct weights *w, const struct arch_dims *d, uint32_t layer_first,
                    uint32_t layer_last, uint64_t *ret_bytes, struct errmsg *em);
/* Bytes in memory of the weights of a slice. */
int eng_weights_bytes(const struct weights *w, const struct arch_dims *d, uint32_t layer_first,
                      uint32_t layer_last, uint64_t *ret_bytes, struct errmsg *em);

/* The same of the layers alone, without the embedding and the output head. */
int eng_layers_bytes(const struct weights *w, const struct arch_dims *d, uint32_t layer_first,
                     uint32_t layer_last, uint64_t *ret_bytes, struct errmsg *em);

/* What an engine takes of memory beside weights, keys and values. */
struct eng_sizes {
    uint64_t step_bytes;   /* buffers of the largest step */
    uint64_t thread_bytes; /* more for each thread */
    uint64_t logits_bytes; /* more on the last slice: of one group of rows (eng_logits) */
};
/* positions: of one sequence, at most. */
struct eng_sizes eng_sizes(const struct arch_dims *d, uint32_t rows_max, uint32_t logits_max,
                           uint64_t positions);

#endif
