/* Two rounds of a loop body (A, P, F), so that the second Free needs the second submission; then M needs all memory. */
#define N 11
#define CHUNKS 3
#define CAPACITY 12

#define A 0
#define S 1
#define P 2
#define F 3
#define A2 4
#define S2 5
#define P2 6
#define F2 7
#define M 8
#define Q 9
#define G 10

inline setup() {
  d_step {
    alloc(A, 6, 0);
    normal(S, 0);
    launch(P, bit(S), bit(A));
    free(F, A);
    alloc(A2, 6, bit(F)); next_round(A2, A);
    normal(S2, bit(S)); next_round(S2, S);
    launch(P2, bit(S2), bit(A2)); next_round(P2, P);
    free(F2, A2); next_round(F2, F);
    alloc(M, 8, 0);
    launch(Q, 0, bit(M));
    free(G, M)
  }
}
