"""Faults in the gateway: requests' bodies, answers' JSON, streams, errors, keys, and what the API has for it."""

ASK, CHOICE, SPLIT, FAULT = ("coordinator/gateway/ask.c", "coordinator/gateway/choice.c", "coordinator/gateway/split.c",
                             "coordinator/gateway/fault.c")
RESPONSE, MESSAGE = "coordinator/gateway/response.c", "coordinator/gateway/message.c"
ACCESS, SSE, HTTPD, JOB = ("coordinator/gateway/access.c", "coordinator/gateway/sse.c", "common/io/httpd.c",
                           "coordinator/gateway/job.c")
CALLS, GENERATE, TALK, WIRE, SCHED = ("coordinator/calls.c", "coordinator/generate.c", "coordinator/conversation.c",
                                      "proto/wire_client.c", "coordinator/core/sched.c")


def m(name, file, old, new, tests, why, **kw):
    return dict(name="gateway-" + name, file=file, old=old, new=new, tests=tests, why=why, **kw)


MUTANTS = [
    # ---- bodies
    m("nan", ASK, "    if (!(x >= p->low && x <= p->high)) /* NaN too */", "    if (x < p->low)", "ask_test", "a parameter has no upper bound", short=True),
    m("unknown", ASK, '        f->code = "unknown_parameter";\n        return -1;', '        f->code = "unknown_parameter";\n        return 0;', "ask_test",
      "an unknown parameter is ignored"),
    m("newer-max", ASK, "    if (a->newer_max && !newer) return 0;\n", "", "ask_test", "the last of two limits stands"),
    m("best-unranked", ASK, "    r->sampling.logprobs = a->logprobs || a->best_of > a->n;", "    r->sampling.logprobs = a->logprobs;", "ask_test",
      "the best of several answers are chosen without their likelihood"),
    m("chat-special", ASK, "    a.request.special = kind == ASK_COMPLETION;", "    a.request.special = true;", "ask_test", "a chat's texts may name control tokens"),
    m("choices", ASK, "a->n_prompts * a->best_of > ASK_CHOICES_MAX)", "false)", "ask_test", "answers have no limit"),
    m("bias-wraps", ASK, "errno || id > INT32_MAX)", "errno)", "ask_test", "the bias of a token is another's"),
    m("bias-twice", ASK, "        bool plain = key[0] >= '0' && key[0] <= '9' && (key[0] != '0' || !key[1]);", "        bool plain = key[0];", "ask_test",
      "a token has two names, and a bias for each"),
    m("tools-none", ASK, "    if (a->no_tools) a->tools = NULL;\n", "", "ask_test", "tools that may not be called are shown to the model"),
    # ---- answers
    m("no-role", CHOICE, '        json_put_string(delta, "role", "assistant", 9);\n        json_put_string(delta, "content", "", 0);', '        json_put_string(delta, "content", "", 0);',
      "ask_test", "the first delta has no role"),
    m("finish-early", CHOICE, "    put_finish(o, c, ends ? c->finish : FINISH_NONE);", "    put_finish(o, c, c->finish);", "ask_test", "a chunk before the last has a finish reason"),
    m("offset", CHOICE, "    uint32_t offset = c->told_text;", "    uint32_t offset = 0;", "ask_test", "text offsets begin anew with each chunk"),
    m("infinity", CHOICE, "    return (double)(x > LOGPROB_LEAST ? x : LOGPROB_LEAST);", "    return (double)x;", "ask_test", "an impossible token's log-probability is null"),
    m("raw-bytes", CHOICE, 'whole ? bytes + i : "\\xef\\xbf\\xbd", whole ? len : 3);', "bytes + i, len);", "ask_test", "a token that is no text is null"),
    m("calls-stop", CHOICE, "    bool calls = c->split.n_calls && finish == FINISH_STOP;", "    bool calls = false;", "openai_test", "an answer that calls tools ends with stop"),
    m("id-length", CHOICE, "for (size_t k = 0; k < 9; k++, x /= 36)", "for (size_t k = 0; k < 8; k++, x /= 36)", "ask_test", "ids of calls have a NUL"),
    # ---- reasoning and calls
    m("end-held", SPLIT, "    if (m == MAYBE) return false;\n    if (m == NO) return is_text(s);\n    size_t n", "    if (m != YES) return is_text(s);\n    size_t n", "ask_test",
      "an end tag that comes in parts is text", short=True),
    m("escapes", SPLIT, "        if (!s->escaped && c == '\"') s->in_string = false;", "        if (c == '\"') s->in_string = false;", "ask_test", "an escaped quote ends a string"),
    m("any-name", SPLIT, "    if (!s->tagged && !is_tool(s, text, n)) return is_text(s);\n", "", "ask_test", "an answer in JSON is taken for a call"),
    m("lead-lost", SPLIT, "    (void)buf_append(&s->content, s->lead.data, s->lead.len);\n", "", "ask_test", "what stood before no call is lost"),
    m("blanks", SPLIT, "    while (s->tools && end > least && is_blank(s->held.data[end - 1])) end--;\n", "    if (least > at) end--;\n", "ask_test", "blanks before a call are told"),
    m("blanks-without-end", SPLIT, "at > SPLIT_BLANKS_MAX ? at - SPLIT_BLANKS_MAX : 0;", "0;", "ask_test", "a model that writes blanks for ever takes time in their square"),
    m("long-head", SPLIT, "    if (m == MAYBE && s->held.len <= SPLIT_HEAD_MAX) return false;", "    if (m == MAYBE) return false;", "ask_test", "a call's name without an end takes time in its square"),
    m("thought-open", SPLIT, ".state = reasoning && open ? SPLIT_THINK : SPLIT_START};", ".state = SPLIT_START};", "ask_test", "reasoning that the template began is content"),
    # ---- errors, events, keys
    m("retry-floor", FAULT, "f->retry_s = (end->retry_ms + 999) / 1000;", "f->retry_s = end->retry_ms / 1000;", "ask_test", "clients come back too early"),
    m("lost-is-ok", FAULT, "end->lost ? 503 : http_of(end->status)", "http_of(end->status)", "ask_test", "a coordinator of another version is the fault of whoever asks"),
    m("param", FAULT, "    find_param(f);\n", "", "ask_test", "errors of the coordinator name no parameter"),
    m("prefix-key", ACCESS, "    unsigned bits = (unsigned)(n_key ^ n) | (unsigned)((n_key ^ n) >> 16);", "    unsigned bits = 0;", "ask_test", "a key's repetition is a key", short=True),
    m("readable-keys", ACCESS, "    if (private && s.st_mode & (S_IRWXG | S_IRWXO))", "    if (private && s.st_mode & S_IRWXG)", "ask_test", "a file of keys that everybody reads is taken"),
    m("one-line-break", SSE, '    put(to, "\\n\\n");\n    json_free(moved);', '    put(to, "\\n");\n    json_free(moved);', "ask_test", "events do not end"),
    # ---- the API
    m("share-of-all", CALLS, "user[0] ? hash_bytes(user, strlen(user), 2) : 0", "0", "calls_test", "users of a gateway share one limit"),
    m("user-believed", GENERATE, "    if ((g->tenant[0] || g->has_priority || g->user[0]) &&", "    if ((g->tenant[0] || g->has_priority) &&", "calls_test", "any client may name a user"),
    m("pieces-always", CALLS, "    if (c->pieces) put_pieces(s, &r);", "    put_pieces(s, &r);", "calls_test", "token bytes are told unasked"),
    m("no-top-pieces", CALLS, "    for (uint32_t i = 0; i < n_top; i++) put_piece(s, r->logprobs.top_ids[i]);\n", "    for (uint32_t i = 0; i < n_top; i++) put_piece(s, -1);\n", "calls_test",
      "alternatives have no bytes"),
    m("found-twice", SCHED, "        r->n_found = n_hits * page + (first ? 0 : r->n_found);", "        r->n_found = r->n_found;", "calls_test", "cached tokens are not told"),
    m("lengths", WIRE, "        if (pieces_length(ret) != r->pieces.len) return wire__bad(em, \"pieces\");\n", "", "wire_test", "a reply's pieces may reach beyond its bytes"),
    m("user-length", WIRE, '    if (g->user && strlen(g->user) >= LIMIT_USER_BYTES) return wire__bad(em, "user");\n', "", "wire_test", "a user's name has no limit"),
    m("thought", TALK, "    if (rc == 0) *ret_open_thought = ends_in_thought(&prompt);\n", "", "calls_test", "nobody hears that the prompt began the reasoning"),
    # ---- HTTP
    m("hangups", HTTPD, "    watch(k);\n", "", "httpd_test", "who leaves while a request waits, or comes, is not noticed"),
    m("slow-body", HTTPD, "now < k->since_ns + h->read_ns) continue;", "true) continue;", "gateway_test", "a request may take for ever to arrive"),
    m("body-limit", HTTPD, "        r->too_large = n > r->body.max - r->body.len;\n", "        r->too_large = false;\n", "gateway_test", "a chunked body has no limit", ),
    m("unwanted-kept", HTTPD, "    if (!r->too_large && !r->unwanted) {", "    if (!r->too_large) {", "httpd_test", "who has no key takes memory all the same"),
    m("two-lengths", HTTPD, "    if (f.lengths > 1) return ", "    if (false) return ", "httpd_test", "of two lengths the first counts, elsewhere perhaps the last", short=True),
    m("length-and-coding", HTTPD, "    if (f.lengths && f.codings) return ", "    if (false) return ", "httpd_test", "a length beside a coding does not count, elsewhere it may"),
    m("folded", HTTPD, "    f->broken |= name[len] != 0;\n", "    f->broken |= len == 0;\n", "httpd_test", "a length in a second line does not count"),
    m("space-in-name", HTTPD, "    f->broken |= !is_token(name);\n", "    f->broken |= !is_token(name) && !*name;\n", "httpd_test", "a length with a space before its colon does not count"),
    m("stream-first", JOB, "    } else if (j->ask.stream && begun) {", "    } else if (j->ask.stream) {", "gateway_test", "a stream's 200 is sent before anything is known"),
    m("no-cancel", JOB, "    e->g->count.gone += gone;\n    cancel_all(j);", "    e->g->count.gone += gone;", "gateway_test", "calls of clients that left go on"),
    # ---- the Responses API
    m("store", RESPONSE, "    if (!on) return 0;\n    return unsupported(t, name,\n", "    if (true) return 0;\n    return unsupported(t, name,\n", "response_test",
      "a response that cannot be stored is promised to be"),
    m("second-thought", RESPONSE, "    if (t->said || t->calls) end_turn(t);\n    t->open = true;\n", "    t->open = true;\n", "response_test",
      "two turns of an assistant become one"),
    m("late-arguments", RESPONSE, "    take_arguments(s, h, c, to);\n    if (c->reasoning.len) {", "    if (c->reasoning.len) {", "response_test",
      "text behind a call goes before its last arguments"),
    m("any-stop", MESSAGE, "!c->split.n_calls ? h->stop : NULL;", "!c->split.n_calls ? NULL : NULL;", "message_test",
      "which stop text ended an answer is not told"),
    m("stop-of-a-call", MESSAGE, "ended && c->finish == FINISH_STOP && !c->split.n_calls ? h->stop", "ended ? h->stop", "message_test",
      "an answer that calls tools ends with a stop text"),
    m("thinks-anyway", MESSAGE, 'json_put_bool(kwargs, "enable_thinking", !off);', 'json_put_bool(kwargs, "enable_thinking", true);', "message_test",
      "thinking cannot be disabled"),
    m("tool-types", MESSAGE, 'if (json_kind(type) != JSON_KIND_NULL && !is_text(type, "custom")) {', "if (false) {", "message_test",
      "a tool of the server's is taken for one of the client's"),
    m("safety-over-user", ASK, 'return json_kind(json_get(a->doc, "user")) == JSON_KIND_STRING ? 0 : take_user(a, name, v, f);',
      "return take_user(a, name, v, f);", "ask_test", "the last of two users stands"),
    m("obscured", ASK, 'return obscured ? unsupported(f, name, "include_obfuscation") : 0;', "return 0;", "ask_test",
      "obfuscation that is asked for is left out without a word"),
    m("stop-place", "common/text/detok.c", "        d->given[d->n_stops] = i;\n", "        d->given[d->n_stops] = d->n_stops;\n", "text_test",
      "an empty stop text moves the places of those behind it"),
    m("stop-beyond", WIRE, "r->stop >= LIMIT_STOPS || ", "", "wire_reply_test", "a stop text beyond all is taken"),
    m("stop-at-the-limit", WIRE, " || parse_finish(r->finish_reason) != FINISH_STOP", "", "wire_reply_test", "an answer that was cut met a stop text"),
    m("stop-untold", "coordinator/answer.c", "a->detok.stopped && a->finish_reason == FINISH_STOP;", "false;", "calls_test",
      "the coordinator does not say which stop text ended an answer"),
    m("cors-any", "coordinator/gateway/gateway.c", "if (!strchr(name_bytes, *at) && *at != ',' && *at != ' ') asked = NULL;", "continue;", "gateway_test",
      "what a browser asks for is repeated, whatever it is"),
    m("late-partial", MESSAGE, "    put_arguments(s, c, to); /* before", "    /* before", "response_test", "a call's last arguments go into the text's block"),
    m("one-status", RESPONSE, "    end_item(s, h, c, c->finish == FINISH_LENGTH, to);", "    end_item(s, h, c, false, to);", "response_test", "an item that was cut is complete"),
    m("response-name", JOB, "        response_rename(f);", "", "responses_test", "an error names a parameter that the API has not"),
    m("thought-again", CHOICE, "c->splits && !c->begun && c->split.finds_thought", "c->splits && c->split.finds_thought", "ask_test",
      "an answer becomes reasoning when another coordinator takes it over"),
]
