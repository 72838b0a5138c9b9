/* E2: L needs X, a memory task that takes no memory, and X is queued behind the allocation M of a later launch. */
#define N 8
#define CHUNKS 4
#define CAPACITY 12

#define A 0
#define P 1
#define X 2
#define L 3
#define F 4
#define M 5
#define R 6
#define G 7

inline setup() {
  d_step {
    idle(0, 3); idle(1, 3);
    alloc(A, 6, 0);
    launch(P, 0, bit(A));
    wrap(X, bit(P));            /* generated late: it needs what P submitted */
    launch(L, bit(X), bit(A));
    free(F, A);
    alloc(M, 4, 0);
    launch(R, 0, bit(M));
    free(G, M); before[G] = before[G] | bit(X)   /* in the queue the Free of the last launch comes last */
  }
}
