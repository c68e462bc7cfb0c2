"""Faults in conversations on the command line: `chat`, its lines, `generate --chat`."""

CHAT, LINE, GENERATE, LOCAL = ("coordinator/cli/chat_cmd.c", "coordinator/cli/line.c", "coordinator/cli/generate.c",
                               "coordinator/cli/gen_local.c")


def m(name, file, old, new, why, **kw):
    return dict(name="chat-" + name, file=file, old=old, new=new, tests="chat_test", why=why, **kw)


MUTANTS = [
    m("interrupted-forgotten", CHAT, "(a.r.text.len || !a.r.interrupted)", "!a.r.interrupted", "what an interrupted answer said is not part of the conversation"),
    m("goes-on", CHAT, "            client_cancel(call);\n", "", "an interrupted answer goes on at the cluster"),
    m("deaf-start", CHAT, "    (void)pthread_sigmask(SIG_UNBLOCK, &set, NULL);\n", "", "^C does not end the wait for a cluster"),
    m("forgets", CHAT, "        json_add(s->messages, answer_message(&a));\n", "", "the assistant's messages are not part of the conversation"),
    m("system-once", CHAT, "    if (s->system.len) json_add(list", "    if (s->system.len && !s->messages) json_add(list", "the system's message is not sent"),
    m("failure-untold", CHAT, "    return failed ? CMD_FAILED : CMD_OK;", "    return CMD_OK;", "a failure in a pipe is a success"),
    m("any-bytes", LINE, "if (!text[i] || utf8_decode", "if (utf8_decode", "a line is cut at its NUL"),
    m("prompt-before-the-keys", LINE, "    (void)el_set(r->editor, EL_PREP_TERM, 1);\n", "", "a key that is typed as soon as the prompt stands is lost"),
    m("breaks-off", LINE, "    hold_signals(r);\n", "    (void)pthread_sigmask(SIG_BLOCK, NULL, &r->waiting);\n", "a signal in the middle of a write to the terminal breaks it off"),
    m("generate-bytes", GENERATE, "rc = err_set(em, ERR_CONF, \"the %s's message", "rc = err_set(em, 0, \"the %s's message",
      "a message that is no text becomes null"),
    m("local-again", LOCAL, "    l->ret->cached = known(l);", "    l->ret->cached = 0 * known(l);", "the engine alone computes a conversation anew with each message"),
    m("local-goes-on", LOCAL, " || is_interrupted(l)) break;", ") break;", "an answer of the engine alone cannot be interrupted"),
    m("local-plain", LOCAL, "l->o->conversation ? encode_chat(l, em)", "l->o->conversation && !l->o->prompt ? encode_chat(l, em)",
      "the engine alone has the prompt without the template"),
]
