/* A family of graphs. Launches P, Q, S write A, B, C; R works in place and has no allocation of its own. All choices of:
 * whether Q reads A, what R updates, whether S reads B, sizes, the launch that waits for the normal worker, and the
 * capacity, from what the sequential executor needs upwards. A block is freed behind its last user. */
#define N 11
#define EPOCHS 1
#define CHUNKS 4
#define CAPACITY capacity
#define A 1
#define P 2
#define waits_for_tiling(number) if :: tiling == number -> first = bit(0) :: else -> first = 0 fi
#define grow(space) live = live + (space); if :: live > capacity -> capacity = live :: else fi
#define drop(node, space) free(at, node); at++; live = live - (space)

byte capacity;

inline setup() {
  byte at, live, slack, tiling, size_a, size_b, B, C;
  short first, touched;
  bool q_reads_a, r_updates_b, s_reads_b;
  if :: q_reads_a = true :: q_reads_a = false fi;
  if :: r_updates_b = true :: r_updates_b = false fi;
  if :: s_reads_b = true :: s_reads_b = false fi;
  if :: slack = 0 :: slack = 1 fi;
  if :: tiling = 2 :: tiling = 3 fi;
  select(size_a : 1 .. 2);
  select(size_b : 1 .. 2);
  skip;
  d_step {
    normal(0, 0);
    alloc(A, size_a, 0); grow(size_a);
    waits_for_tiling(1); launch(P, first, bit(A));
    at = 3;
    if :: !q_reads_a && r_updates_b -> drop(A, size_a) :: else fi;
    B = at; at++;
    alloc(B, size_b, 0); grow(size_b);
    waits_for_tiling(2); touched = bit(B) | (q_reads_a * bit(A)); launch(at, first, touched); at++;
    if :: q_reads_a && r_updates_b -> drop(A, size_a) :: else fi;
    if :: !r_updates_b && !s_reads_b -> drop(B, size_b) :: else fi;
    waits_for_tiling(3); touched = r_updates_b * bit(B) + (1 - r_updates_b) * bit(A); launch(at, first, touched); at++;
    if :: !r_updates_b -> drop(A, size_a) :: else fi;
    if :: r_updates_b && !s_reads_b -> drop(B, size_b) :: else fi;
    C = at; at++;
    alloc(C, 2, 0); grow(2);
    waits_for_tiling(4); touched = bit(C) | (s_reads_b * bit(B)); launch(at, first, touched); at++;
    if :: s_reads_b -> drop(B, size_b) :: else fi;
    drop(C, 2);
    assert(at == N);
    capacity = capacity + slack
  }
}
