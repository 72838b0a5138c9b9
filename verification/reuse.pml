/* The silent form of E1: M has the size of a, so the pool hands a's chunk to M while L has yet to read it. */
#define N 8
#define CHUNKS 2
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
    alloc(A, 6, 0);
    launch(P, 0, bit(A));
    normal(T, 0);
    alloc(M, 6, 0);
    launch(Q, bit(T), bit(M));
    launch(L, 0, bit(A));
    free(F, A);
    free(G, M)
  }
}
