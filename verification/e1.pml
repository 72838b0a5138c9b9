/* E1: the order of launches closes the cycle M -> L -> Q -> M. Two idle chunks of 3 units are left from earlier runs. */
#define N 8
#define CHUNKS 4
#define CAPACITY 12

#define A 0
#define P 1
#define T 2
#define M 3
#define Q 4
#define L 5
#define F 6
#define G 7

inline setup() {
  d_step {
    idle(0, 3); idle(1, 3);
    alloc(A, 6, 0);
    launch(P, 0, bit(A));
    normal(T, 0);
    alloc(M, 4, 0);
    launch(Q, bit(T), bit(M));
    launch(L, 0, bit(A));       /* in place: it has no allocation of its own */
    free(F, A);
    free(G, M)
  }
}
