/* What a tree holds. Private to grammar_tree.c, which builds it, and grammar_compile.c. */
#ifndef FLOTILLA_TEXT_GRAMMAR_TREE_STATE_H
#define FLOTILLA_TEXT_GRAMMAR_TREE_STATE_H

#include "common/text/grammar_tree.h"

enum node_kind {
    NODE_NONE,
    NODE_TEXT,   /* b bytes of `bytes`, from a on */
    NODE_RANGE,  /* a byte of a..b */
    NODE_SET,    /* a byte below 0x80, of `ascii` */
    NODE_SEQ,    /* a, then b */
    NODE_ALT,    /* a or b */
    NODE_REPEAT, /* a, min to max times */
    NODE_REF,    /* rule a */
};

struct grammar_node {
    enum node_kind kind;
    uint32_t a, b;
    uint16_t min, max;
    uint64_t ascii[2];
    /* Found when it is compiled: */
    bool nullable;     /* it may be empty */
    uint16_t need;     /* words of stack that its least deep answer takes */
    uint16_t deepest;  /* that its deepest answer takes */
    uint64_t first[4]; /* bytes that it may begin with */
};

/* How far a walk through the rules is. */
enum rule_walk { RULE_NEW, RULE_BEGUN, RULE_DONE };

struct grammar_rule {
    gnode is;
    enum rule_walk walk;
    bool wanted; /* something calls it */
    bool placed; /* it has an address: */
    uint32_t at;
};

struct grammar_tree {
    struct grammar_node *nodes; /* n */
    uint32_t n, cap;
    struct grammar_rule *rules; /* n_rules */
    uint32_t n_rules, rules_cap;
    struct buf bytes;   /* of the texts */
    uint32_t character; /* one more than the rule that is any character of a JSON string; 0: none */
    bool full;
};

#endif
