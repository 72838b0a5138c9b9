/* The exact wait: M fits only when a's chunk is recycled, which must wait for P, which waits for the normal worker.
 * C comes behind M, and X, which takes no memory, may pass both. */
#define N 11
#define CHUNKS 4
#define CAPACITY 12

#define A 0
#define T 1
#define P 2
#define F 3
#define M 4
#define X 5
#define Q 6
#define G 7
#define C 8
#define R 9
#define H 10

inline setup() {
  d_step {
    idle(0, 3);
    alloc(A, 6, 0);
    normal(T, 0);
    launch(P, bit(T), bit(A));
    free(F, A);
    alloc(M, 7, 0);
    wrap(X, 0);
    launch(Q, bit(X), bit(M));
    free(G, M);
    alloc(C, 5, 0);
    launch(R, 0, bit(C));
    free(H, C)
  }
}
