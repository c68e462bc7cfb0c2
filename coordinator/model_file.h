/* A model file as the coordinator and the command line see it: directory, shape and vocabulary.
 * The glue between common/engine (which reads model files) and common/text (which knows no files).
 */
#ifndef FLOTILLA_COORDINATOR_MODEL_FILE_H
#define FLOTILLA_COORDINATOR_MODEL_FILE_H

#include "common/base/err.h"
#include "common/engine/engine.h"
#include "common/text/vocab.h"

struct model_file {
    char *path;
    struct weights *weights;
    struct arch_dims dims; /* all zero when only the vocabulary was asked for */
    struct vocab *vocab;
};

/* `with_model` false: the file may be a vocabulary without tensors. `pre`: the pre-tokeniser to use
 * in place of the one that the file names, or NULL. Warns in the log of metadata that it does not
 * read. */
int model_file_open(const char *path, bool with_model, const char *pre, struct model_file *ret,
                    struct errmsg *em);
void model_file_close(struct model_file *f);

#endif
