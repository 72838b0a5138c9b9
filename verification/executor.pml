/* The multi-worker executor as a protocol: a memory, a launch and a normal worker, a device, and the scheduling thread.
 *
 * A scenario file gives N (nodes), CHUNKS, CAPACITY and setup(); README.md says what is modelled and what is not.
 * Nodes are numbered in the order in which the sequential executor runs them. A set of nodes is a bit mask.
 *
 * What is checked in every state: no worker waits forever (invalid end states), no block is handed to the system while
 * a launch may touch it, no launch overwrites a block that an earlier launch has yet to read, a parked allocation is
 * resumed once and in its own run, the first abort status survives, and the run after a failed run succeeds.
 *
 * Switches (-D):
 *   GATE         the proof gate: order edges, or the original edge, wherever a removed edge is not safe
 *   PARK         a slow allocation parks; without it it blocks the memory worker
 *   ANY_ORDER    every linear extension is a memory queue; without it the queue is the sequential order
 *   INJECT       one node of the first run fails or ends the sequence
 *   EXPECT_OOM   a run may end out of memory (without it, it must succeed where the sequential executor does)
 * Faults, each of which the checker must find:
 *   BREAK_GATE (forgets that launches keep their order), BREAK_WAIT (recycles without waiting), BREAK_SYNC (recycles
 *   without synchronising), BREAK_REGISTER (tests and registers in two steps), BREAK_EPOCH (ignores the epoch tag),
 *   BREAK_PASS (a Free with relations passes a parked allocation, which then recycles without waiting again),
 *   BREAK_WAKE (an abort wakes nobody), BREAK_STATUS (the last status wins)
 */

#define NONE 255
#define bit(n) (1 << (n))
#define has(set, n) (((set) & bit(n)) != 0)

#include SCENARIO

#ifndef EPOCHS
#define EPOCHS 2
#endif

mtype = { MEMORY, LAUNCH, NORMAL };             /* workers */
mtype = { OK, FAILED, EOS, OOM };               /* statuses */
mtype = { REGISTERED, RESUMABLE, STARVED };     /* why the allocation `front` is parked */

/* ---- the graph: written by setup() and the gate, constant afterwards ---- */
mtype worker[N];
short before[N];      /* direct predecessors */
short relation[N];    /* of a Free: the launches that its removed edges came from */
short users[N];       /* of an allocation: the launches that touch its block */
byte size[N];         /* of an allocation: units; 0 for every other node */
byte frees[N];        /* of a Free: the allocation whose block it gives back */
byte row[N];          /* execution id: rounds of a loop share one */
byte memory_queue[N], launch_queue[N], normal_queue[N];
byte memory_count, launch_count, normal_count;
byte fault_node = NONE;
mtype fault_status = OK;

/* ---- the memory ---- */
byte chunk_size[CHUNKS];     /* 0: the system has it */
byte holder[CHUNKS];         /* the allocation that holds it, or NONE: idle in the pool */
short owed[CHUNKS];          /* launches of former holders that the chunk has to outlive */

/* ---- one run ---- */
byte epoch;
short done, submitted, completed;
byte submitted_gen[N], free_gen[N], required_gen[N];
byte unmet;
bool aborted, waiting, freed, launch_busy, normal_busy;
mtype status = OK;
byte memory_at, launch_at, normal_at, device_at, finished;
byte front = NONE;           /* the parked allocation; those behind it follow in queue order */
mtype front_state;
byte front_epoch;
short behind;

hidden byte i, j, k, total, got;
hidden short need[N];

#define ready(n) ((before[n] & ~done) == 0)
#define launch_waits (launch_at == launch_count || !ready(launch_queue[launch_at]))
#define normal_waits (normal_at == normal_count || !ready(normal_queue[normal_at]))
#define memory_waits (memory_at == memory_count || !ready(memory_queue[memory_at]))
#ifdef BREAK_PASS
#define lines_up(n) (size[n] > 0)
#else
#define lines_up(n) (size[n] > 0 || relation[n] != 0)
#endif
#define is_stuck (!launch_busy && !normal_busy && launch_waits && normal_waits && memory_waits)

/* ---- words for scenarios ---- */
inline add(n, w, b) { worker[n] = w; before[n] = b; frees[n] = NONE; row[n] = n }
inline alloc(n, space, b) { add(n, MEMORY, b); size[n] = space }
inline wrap(n, b) { add(n, MEMORY, b) }                       /* a memory task that takes no memory */
inline normal(n, b) { add(n, NORMAL, b) }
inline free(n, a) { add(n, MEMORY, bit(a)); frees[n] = a; relation[n] = users[a] }
inline launch(n, b, blocks) {
  add(n, LAUNCH, (b) | (blocks));
  for (i : 0 .. N - 1) { if :: has(blocks, i) -> users[i] = users[i] | bit(n) :: else fi }
}
inline idle(c, space) { chunk_size[c] = space }
inline next_round(n, first) { row[n] = row[first] }          /* a later round of the same node */

/* ---- before the first run ---- */
inline close() {   /* need[n]: everything that has to run before n */
  for (i : 0 .. N - 1) { need[i] = before[i] }
  for (k : 0 .. N - 1) {
    for (i : 0 .. N - 1) { if :: has(need[i], k) -> need[i] = need[i] | need[k] :: else fi }
  }
}

/* A queue in sequential order: launches keep it on the stream, and the head of a queue holds up the rest. */
#define fill(w, queue, count) for (i : 0 .. N - 1) { if :: worker[i] == w -> queue[count] = i; count++ :: else fi }
#define chain(queue, count) \
  for (i : 1 .. N - 1) { if :: i < count -> before[queue[i]] = before[queue[i]] | bit(queue[i - 1]) :: else fi }

inline chain_queues() { chain(launch_queue, launch_count); chain(normal_queue, normal_count) }

inline gate() {   /* every memory task that a launch needs comes before the Frees related to it, or the edge comes back */
  for (j : 0 .. N - 1) {
    for (total : 0 .. N - 1) {
      for (got : 0 .. N - 1) {
        if
        :: has(relation[j], total) && has(need[total], got) && worker[got] == MEMORY && got != j && !has(need[j], got) ->
           if
           :: has(need[got], j) -> relation[j] = relation[j] & ~bit(total); before[j] = before[j] | bit(total)
           :: else -> before[j] = before[j] | bit(got)
           fi;
           close()
        :: else
        fi
      }
    }
  }
}

inline choose_memory_queue() {   /* any linear extension */
  do
  :: memory_count == tasks -> break
  :: else ->
     select(pick : 0 .. N - 1);
     atomic {
       if
       :: has(unqueued, pick) && (need[pick] & unqueued) == 0 ->
          memory_queue[memory_count] = pick; memory_count++; unqueued = unqueued & ~bit(pick)
       :: else
       fi
     }
  od
}

/* ---- memory ---- */
inline take(n, ok) {   /* from the pool an idle chunk of this very size, else a new one; ok: it has the memory */
  d_step {
    got = NONE; total = 0; j = NONE;
    for (i : 0 .. CHUNKS - 1) {
      total = total + chunk_size[i];
      if
      :: chunk_size[i] == size[n] && holder[i] == NONE && got == NONE -> got = i
      :: chunk_size[i] == 0 -> j = i
      :: else
      fi
    }
    if
    :: got == NONE && total + size[n] <= CAPACITY -> assert(j != NONE); got = j; chunk_size[got] = size[n]
    :: else
    fi;
    ok = (got != NONE);
    if :: ok -> holder[got] = n :: else fi
  }
}

inline give_back(a) {
  d_step {
    for (i : 0 .. CHUNKS - 1) {
      if :: holder[i] == a && chunk_size[i] > 0 -> holder[i] = NONE; owed[i] = owed[i] | users[a] :: else fi
    }
  }
}

inline recycle() {   /* idle chunks go back to the system */
  d_step {
    for (i : 0 .. CHUNKS - 1) {
      if
      :: chunk_size[i] > 0 && holder[i] == NONE ->
         assert((owed[i] & ~completed) == 0);        /* a launch may still touch this memory */
         chunk_size[i] = 0; owed[i] = 0
      :: else
      fi
    }
  }
}

inline synchronise() {
#ifdef BREAK_SYNC
  skip
#else
  atomic { seen = submitted; (completed & seen) == seen }
#endif
}

inline submit(n) {
  d_step {
    for (i : 0 .. CHUNKS - 1) {
      if
      :: chunk_size[i] > 0 && holder[i] != NONE && has(users[holder[i]], n) ->
         assert((owed[i] & ~submitted) == 0)         /* an earlier user of this block comes later on the stream */
      :: else
      fi
    }
    submitted = submitted | bit(n)
  }
}

/* ---- relations and aborts; each is one critical section of the implementation ---- */
inline wake() {
  waiting = false;
  if :: front != NONE && front_state == REGISTERED -> front_state = RESUMABLE :: else fi
}

inline abort(s) {
  atomic {
#ifndef BREAK_STATUS
    if :: !aborted -> status = s :: else fi;
#else
    status = s;
#endif
    aborted = true;
#ifndef BREAK_WAKE
    wake()
#endif
  }
}

inline report_free(n) {
  atomic {
    if
    :: !aborted && relation[n] != 0 ->
       free_gen[row[n]]++;
       for (i : 0 .. N - 1) {
         if
         :: has(relation[n], i) && required_gen[row[i]] < free_gen[row[n]] ->
            if
            :: submitted_gen[row[i]] >= required_gen[row[i]] && submitted_gen[row[i]] < free_gen[row[n]] -> unmet++
            :: else
            fi;
            required_gen[row[i]] = free_gen[row[n]]
         :: else
         fi
       }
    :: else
    fi
  }
}

inline report_launch(n) {
  atomic {
    if
    :: !aborted ->
       submitted_gen[row[n]]++;
       if
       :: submitted_gen[row[n]] == required_gen[row[n]] -> unmet--; if :: unmet == 0 -> wake() :: else fi
       :: else
       fi
    :: else
    fi
  }
}

inline publish(n) { assert(ready(n) && !has(done, n)); done = done | bit(n) }

/* ---- the memory worker ---- */
inline wait_for_launches() {   /* the blocking form of the exact wait */
#ifdef BREAK_WAIT
  skip
#else
#ifdef BREAK_REGISTER
  ok = (unmet > 0 && !aborted);
  waiting = ok;
#else
  atomic { waiting = (unmet > 0 && !aborted) }
#endif
  !waiting;
#endif
}

inline park(n, why) { front = n; front_state = why; front_epoch = epoch; freed = false }

inline slow_path(n, ok) {   /* wait -> synchronise -> recycle -> retry; ok is false when n failed or parked */
#ifdef PARK
#ifdef BREAK_WAIT
  parks = false;
#elif defined(BREAK_REGISTER)
  parks = (unmet > 0 && !aborted);
  if :: parks -> park(n, REGISTERED) :: else fi;
#else
  atomic { parks = (unmet > 0 && !aborted); if :: parks -> park(n, REGISTERED) :: else fi }
#endif
  if
  :: parks -> ok = false
  :: else -> retry(n, ok); if :: !ok && !aborted -> park(n, STARVED) :: else fi
  fi
#else
  wait_for_launches();
  retry(n, ok);
  if :: !ok && !aborted -> abort(OOM) :: !ok && aborted -> abort(FAILED) :: else fi
#endif
}

inline retry(n, ok) {
  ok = false;
  if :: aborted :: else -> synchronise(); recycle(); take(n, ok) fi
}

inline run_memory(n) {
  if
  :: n == fault_node && epoch == 1 -> abort(fault_status)
  :: else ->
     ok = true;
     if
     :: size[n] > 0 -> take(n, ok); if :: !ok -> slow_path(n, ok) :: else fi
     :: frees[n] != NONE -> give_back(frees[n]); report_free(n); freed = true
     :: else
     fi;
     if :: ok -> publish(n) :: else fi
  fi
}

inline resume() {   /* the parked allocation, then those that came behind it */
#ifdef BREAK_EPOCH
  if
#else
  if
  :: front_epoch != epoch -> front = NONE          /* an earlier run left it */
#endif
  :: else ->
     n = front; front = NONE;
#ifdef BREAK_PASS
     retry(n, ok); if :: !ok && !aborted -> park(n, STARVED) :: else fi;
#else
     slow_path(n, ok);                             /* from the wait on */
#endif
     if
     :: ok -> publish(n); next_behind()
     :: !ok && aborted -> abort(FAILED)            /* loses against the status of the first abort */
     :: else
     fi
  fi
}

inline next_behind() {   /* the next one in queue order tries at once */
  d_step {
    j = NONE;
    for (i : 0 .. N - 1) {
      if :: i < memory_count && j == NONE && has(behind, memory_queue[i]) -> j = memory_queue[i] :: else fi
    }
    n = j;
    if :: n != NONE -> behind = behind & ~bit(n) :: else fi
  }
  if :: n != NONE -> run_memory(n); if :: front == NONE && !aborted && behind != 0 -> again = true :: else fi :: else fi
}

proctype memory_worker() {
  byte n, round;
  bool ok, parks, again;
  short seen;
  for (round : 1 .. EPOCHS) {
    epoch == round;
    behind = 0; again = false;
    do
    :: aborted -> break
    :: memory_at == memory_count && (front == NONE || front_epoch != epoch) && !again -> break
    :: !aborted && again -> again = false; next_behind()
    :: front != NONE && front_state == RESUMABLE -> resume()
    :: !aborted && front != NONE && front_epoch == epoch && front_state == STARVED && freed -> freed = false; resume()
    :: !aborted && !again && !memory_waits ->
       n = memory_queue[memory_at];
       memory_at++;
       if
       :: front != NONE && front_epoch == epoch && lines_up(n) -> behind = behind | bit(n)
       :: else -> run_memory(n)
       fi
    :: atomic { !aborted && front != NONE && front_epoch == epoch && front_state != RESUMABLE && is_stuck &&
                !(front_state == STARVED && freed) -> abort(OOM) }
    od;
    finished++
  }
}

/* ---- the other workers, the device ---- */
proctype launch_worker() {
  byte n, round;
  for (round : 1 .. EPOCHS) {
    epoch == round;
    do
    :: aborted || launch_at == launch_count -> break
    :: atomic { !aborted && !launch_waits -> launch_busy = true; n = launch_queue[launch_at] }
       if
       :: n == fault_node && epoch == 1 -> abort(fault_status)
       :: else -> submit(n); report_launch(n); if :: !aborted -> publish(n) :: else fi
       fi;
       atomic { launch_busy = false; launch_at++ }
    od;
    finished++
  }
}

proctype normal_worker() {
  byte n, round;
  for (round : 1 .. EPOCHS) {
    epoch == round;
    do
    :: aborted || normal_at == normal_count -> break
    :: atomic { !aborted && !normal_waits -> normal_busy = true; n = normal_queue[normal_at] }
       if :: n == fault_node && epoch == 1 -> abort(fault_status) :: else -> publish(n) fi;
       atomic { normal_busy = false; normal_at++ }
    od;
    finished++
  }
}

proctype device() {   /* works in the order of submission, whenever it likes */
end:
  do
  :: atomic { device_at < launch_count && has(submitted, launch_queue[device_at]) ->
              completed = completed | bit(launch_queue[device_at]); device_at++ }
  od
}

/* ---- the scheduling thread ---- */
inline start_run() {
  d_step {
    for (i : 0 .. N - 1) { submitted_gen[i] = 0; free_gen[i] = 0; required_gen[i] = 0 }
    done = 0; submitted = 0; completed = 0; unmet = 0; aborted = false; status = OK; freed = false;
    memory_at = 0; launch_at = 0; normal_at = 0; device_at = 0; finished = 0;
    epoch++
  }
}

inline end_run() {
  completed == submitted;
  d_step {
    if
    :: epoch == 1 && fault_node != NONE -> assert(status == fault_status)   /* the first status, and it was noticed */
    :: else ->
#ifdef EXPECT_OOM
       assert(status == OK || status == OOM);
#else
       assert(status == OK);
#endif
       if :: status == OK -> assert(done == bit(N) - 1 && unmet == 0) :: else fi
    fi;
    for (i : 0 .. CHUNKS - 1) {
      if :: status == OK -> assert(chunk_size[i] == 0 || holder[i] == NONE) :: else fi;   /* nothing leaks */
      holder[i] = NONE; owed[i] = 0      /* after a failure the slots drop what they hold */
    }
  }
}

init {
  byte round, pick;
  byte tasks;
  short unqueued;
  d_step {
    for (i : 0 .. CHUNKS - 1) { holder[i] = NONE }
  }
  setup();
  d_step {
    fill(LAUNCH, launch_queue, launch_count);
    fill(NORMAL, normal_queue, normal_count);
#ifndef BREAK_GATE
    chain_queues();
#endif
    close();
#ifdef GATE
    gate();
#endif
#ifdef BREAK_GATE
    chain_queues();
    close();
#endif
    for (i : 0 .. N - 1) {
      if :: worker[i] == MEMORY -> tasks++; unqueued = unqueued | bit(i) :: else fi
    }
  }
#ifdef ANY_ORDER
  choose_memory_queue();
#else
  d_step { fill(MEMORY, memory_queue, memory_count) }
#endif
#ifdef INJECT
  select(fault_node : 0 .. N - 1);
  if :: fault_status = FAILED :: fault_status = EOS fi;
#endif
  atomic { run memory_worker(); run launch_worker(); run normal_worker(); run device() }
  for (round : 1 .. EPOCHS) {
    start_run();
    finished == 3;
    end_run()
  }
}
