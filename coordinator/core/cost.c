#include "coordinator/core/cost.h"

#include <stdbool.h>

#define KEEP 0.99  /* of the weight of what was learnt before, a Step */
#define RIDGE 1e-4 /* of each diagonal: keeps terms apart that always came together */

/* Units in which the terms are of like size. */
static void terms_of(struct cost_work w, double *x)
{
    x[0] = 1.0;
    x[1] = (double)w.rows / 16.0;
    x[2] = (double)w.logits / 16.0;
    x[3] = (double)w.depth / 16384.0;
}

/* Solves a x = b for a symmetric positive definite matrix: elimination without pivoting. */
static void solve(double a[COST_TERMS][COST_TERMS], double *b, double *x)
{
    for (int k = 0; k < COST_TERMS; k++)
        for (int i = k + 1; i < COST_TERMS; i++) {
            double f = a[i][k] / a[k][k];
            for (int j = k; j < COST_TERMS; j++) a[i][j] -= f * a[k][j];
            b[i] -= f * b[k];
        }
    for (int i = COST_TERMS; i-- > 0;) {
        x[i] = b[i];
        for (int j = i + 1; j < COST_TERMS; j++) x[i] -= a[i][j] * x[j];
        x[i] /= a[i][i];
    }
}

/* No term makes a Step shorter: one that comes out below zero is left out and the rest fitted
 * again. */
static void fit(struct cost *c)
{
    bool out[COST_TERMS] = {false};
    for (int tries = 0; tries < COST_TERMS; tries++) {
        double a[COST_TERMS][COST_TERMS], b[COST_TERMS];
        for (int i = 0; i < COST_TERMS; i++) {
            for (int j = 0; j < COST_TERMS; j++)
                a[i][j] = i != j && (out[i] || out[j]) ? 0.0 : c->xx[i][j];
            a[i][i] += a[i][i] * RIDGE + 1e-24;
            b[i] = out[i] ? 0.0 : c->xy[i];
        }
        solve(a, b, c->weight);
        int worst = 0;
        for (int i = 1; i < COST_TERMS; i++)
            if (c->weight[i] < c->weight[worst]) worst = i;
        if (c->weight[worst] >= 0.0) return;
        out[worst] = true;
    }
}

void cost_learn(struct cost *c, struct cost_work work, uint64_t took_ns)
{
    double x[COST_TERMS], took = (double)(took_ns ? took_ns : 1);
    terms_of(work, x);
    for (int i = 0; i < COST_TERMS; i++) x[i] /= took; /* errors count in proportion */
    for (int i = 0; i < COST_TERMS; i++) {
        for (int j = 0; j < COST_TERMS; j++) c->xx[i][j] = c->xx[i][j] * KEEP + x[i] * x[j];
        c->xy[i] = c->xy[i] * KEEP + x[i];
    }
    c->n++;
    fit(c);
}

uint64_t cost_predict(const struct cost *c, struct cost_work work)
{
    double x[COST_TERMS], sum = 0.0;
    terms_of(work, x);
    for (int i = 0; i < COST_TERMS; i++) sum += c->weight[i] * x[i];
    return (uint64_t)sum;
}
