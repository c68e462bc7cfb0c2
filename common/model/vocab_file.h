/* The vocabulary that a model file holds. */
#ifndef FLOTILLA_MODEL_VOCAB_FILE_H
#define FLOTILLA_MODEL_VOCAB_FILE_H

#include "common/base/err.h"
#include "common/engine/weights.h"
#include "common/text/vocab.h"

struct vocab_file_options {
    const char *pre; /* the pre-tokeniser to use in place of the one that the file names, or NULL */
    bool decodes_only; /* no text will be encoded (vocab.h) */
};

/* Nothing of the file is needed afterwards. ERR_FORMAT, ERR_UNSUPPORTED, ERR_LIMIT and ERR_NOMEM,
 * with a text that names the key; ERR_CONF: `pre` for a vocabulary that uses none. */
int vocab_file_open(const struct weights *w, const struct vocab_file_options *o, struct vocab **ret,
                    struct errmsg *em);

#endif
