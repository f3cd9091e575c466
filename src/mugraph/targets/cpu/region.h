/* The kernels of one call, run by all threads of the pool together in one parallel region. There is no barrier between kernels:
   a thread that is done with one goes on with the next, and waits only where that reads or overwrites what a kernel before it
   has not done yet. Any thread runs any block: one that wakes late, when all are done, is waited for but once, at the end
   of the region. */

extern int sched_yield(void);
extern int usleep(unsigned);

#if defined(__x86_64__) || defined(__i386__)
#define PAUSE() __builtin_ia32_pause()
#else
#define PAUSE() __asm__ volatile("" ::: "memory")
#endif

/* What others compute without AVX is slow while registers of vectors hold something. GCC leaves them so where the last that a function
   does is a call of a function that uses none of them. */
#ifdef __AVX__
#define LEAVE_VECTORS() __builtin_ia32_vzeroupper()
#else
#define LEAVE_VECTORS()
#endif

/* Keeps the loop that it stands in from being vectorised: loops of a few steps, which gathers and scatters make slower. */
#define SCALAR() __asm__ volatile("" ::: "memory")

/* A thread takes its share in so many parts, so that others may take what is left of it. */
#define PARTS 16
/* A thread that waits looks so many times without a break, about 10 microseconds; then lets others run so many times; and then
   sleeps so many microseconds at a time. */
#define LOOKS 256
#define YIELDS 256
#define NAP 50

/* A number that threads change: a line of the cache for each. */
typedef struct { long value, rest[7]; } counter;
/* As many of them as a call has on the stack. */
#define FEW 128

typedef struct task task;
typedef struct worker worker;

/* What is exported of a kernel. `prepare` says of a call how its blocks are run; `refused`, unless it is 0, gives the number, from
   1 on, of the integers that are not what they must be, or 0. */
typedef struct {
    void (*prepare)(void **arguments, task *task);
    long (*refused)(void **arguments);
} kernel;

/* A kernel in a call: it begins when the first `after` tasks of the call are done. */
struct task {
    const kernel *kernel;
    void **arguments;
    long after;
    void (*run)(void **arguments, worker *worker);
    int parallel;
    long blocks;
    /* How many blocks are done; and of each thread's share, how many are taken. */
    counter *done, *taken;
    /* Whether a block of the call had no memory: then no task of it begins any more. */
    int *lacking;
};

/* A thread that runs blocks [first, last) of a task, one of `threads` that share them. In the shares of `visited` of these nothing is
   left for it to take, its own being the first; `blocks` are those that it has taken. */
struct worker {
    const task *task;
    long thread, threads, visited, first, last, blocks;
};

/* Memory of a block, a multiple of 64 bytes, for a variable that is FREED; NULL where there is none, which the call is told of. */
static __attribute__((unused)) void *allocated(const worker *worker, unsigned long size)
{
    void *memory = aligned_alloc(64, size);
    if (!memory)
        __atomic_store_n(worker->task->lacking, 1, __ATOMIC_RELAXED);
    return memory;
}

INLINE void release(void *pointer) { free(*(void **)pointer); }

/* Of a pointer to memory that is given back when its block of C is left. */
#define FREED __attribute__((cleanup(release)))

/* Take all or a part of a share of which there are blocks left, this thread's own first; 0 where there is none. */
INLINE int next_of_share(worker *worker, long whole)
{
    const task *task = worker->task;
    for (; worker->visited < worker->threads; ++worker->visited) {
        const long whose = (worker->thread + worker->visited) % worker->threads;
        long first, last;
        share_of(task->blocks, whose, worker->threads, &first, &last);
        const long some = whole ? last - first : (last - first) / PARTS + 1;
        long *taken = &task->taken[whose].value;
        if (__atomic_load_n(taken, __ATOMIC_RELAXED) >= last - first)
            continue;
        first += __atomic_fetch_add(taken, some, __ATOMIC_RELAXED);
        if (first >= last)
            continue;
        worker->first = first;
        worker->last = first + some < last ? first + some : last;
        worker->blocks += worker->last - first;
        return 1;
    }
    return 0;
}

/* Take a part of the blocks. */
static __attribute__((unused)) int next_part(worker *worker) { return next_of_share(worker, worker->threads == 1); }

/* Take a whole share: of rows, where blocks begin at any row. */
static __attribute__((unused)) int next_share(worker *worker) { return next_of_share(worker, 1); }

/* Take the blocks first, first + threads, ... where the last blocks have less to do. */
static __attribute__((unused)) int next_turn(worker *worker)
{
    const long blocks = worker->task->blocks;
    for (; worker->visited < worker->threads; ++worker->visited) {
        const long turn = (worker->thread + worker->visited) % worker->threads;
        long *taken = &worker->task->taken[turn].value;
        if (turn >= blocks || __atomic_load_n(taken, __ATOMIC_RELAXED) || __atomic_exchange_n(taken, 1, __ATOMIC_RELAXED))
            continue;
        worker->first = turn;
        worker->blocks += (blocks - turn + worker->threads - 1) / worker->threads;
        return 1;
    }
    return 0;
}

/* The last block that no thread has taken yet; less than 0 where there is none. */
INLINE long next_from_last(worker *worker)
{
    const long block = worker->task->blocks - 1 - __atomic_fetch_add(&worker->task->taken->value, 1, __ATOMIC_RELAXED);
    worker->blocks += block >= 0;
    return block;
}

/* Whether nothing of a task is left to be done, or to be waited for. */
static int is_done(const task *task)
{
    return __atomic_load_n(&task->done->value, __ATOMIC_ACQUIRE) >= task->blocks || __atomic_load_n(task->lacking, __ATOMIC_RELAXED);
}

/* Run what blocks of a task are left, as one of so many threads. */
static void work_on(task *task, long thread, long threads)
{
    if (is_done(task))
        return;
    if (!task->parallel)
        thread = 0, threads = 1;
    worker worker = {task, thread, threads};
    task->run(task->arguments, &worker);
    LEAVE_VECTORS();
    if (worker.blocks)
        __atomic_fetch_add(&task->done->value, worker.blocks, __ATOMIC_RELEASE);
}

static void wait_for(const task *task)
{
    for (long looks = 0; !is_done(task); ++looks)
        if (looks < LOOKS)
            PAUSE();
        else if (looks < LOOKS + YIELDS)
            sched_yield();
        else
            usleep(NAP);
}

/* Tasks `first` to `last` of a call. */
typedef struct { task *tasks; long first, last; } region;

static void run_region(void *data)
{
    const region *region = data;
    const long thread = omp_get_thread_num(), threads = omp_get_num_threads();
    for (long number = region->first, over = number; number <= region->last; ++number) {
        task *task = region->tasks + number;
        for (; over < task->after; ++over)
            wait_for(region->tasks + over);
        work_on(task, thread, threads);
    }
}

/* Run the tasks of a call, all threads together those from the first to the last that are worth waking them. */
static void run_together(task *tasks, long count, long threads)
{
    long first = 0, end = count;
    while (!tasks[end - 1].parallel)
        --end;
    for (; !tasks[first].parallel; ++first)
        work_on(tasks + first, 0, 1);
    region region = {tasks, first, end - 1};
    GOMP_parallel(run_region, &region, threads, 0);
    for (; end < count; ++end)
        work_on(tasks + end, 0, 1);
}

/* Run the kernels of a plan, which is: their number, the number of all their operands, and for each kernel its address, `after`, the
   number of its operands, and where the address of each stands among `addresses`. Where integers of one are not what they must be,
   none runs, and the result is 1 + the number of the kernel + the number of kernels * the number of the integers, from 0 on. Where
   there is no memory for a block, the result is -1, and outputs have what they have. */
long run_kernels(const long *plan, void *const *addresses)
{
    const long count = *plan++, operands = *plan++;
    task tasks[count];
    void *all[operands], **arguments = all;
    int parallel = 0, lacking = 0;
    for (long number = 0; number < count; ++number) {
        task *task = tasks + number;
        *task = (struct task){.kernel = (const kernel *)plan[0], .arguments = arguments, .after = plan[1], .lacking = &lacking};
        for (const long own = plan[2], *next = plan + 3, *end = next + own; next < end; ++next) {
            *arguments++ = addresses[*next];
            SCALAR();
        }
        const long refused = task->kernel->refused ? task->kernel->refused(task->arguments) : 0;
        if (refused)
            return number + 1 + count * (refused - 1);
        task->kernel->prepare(task->arguments, task);
        parallel |= task->parallel;
        plan += 3 + plan[2];
    }
    const long threads = parallel && GOMP_parallel && omp_get_max_threads ? omp_get_max_threads() : 1;
    counter few[FEW], *const counters = count * (1 + threads) > FEW ? aligned_alloc(64, count * (1 + threads) * sizeof(counter)) : few;
    if (!counters)
        return -1;
    counter *next = counters;
    for (long number = 0; number < count; ++number, next += 1 + threads) {
        tasks[number].done = next;
        tasks[number].taken = next + 1;
    }
    while (next > counters) {
        (--next)->value = 0;
        SCALAR();
    }
    if (threads > 1)
        run_together(tasks, count, threads);
    else
        for (long number = 0; number < count; ++number)
            work_on(tasks + number, 0, 1);
    if (counters != few)
        free(counters);
    return -lacking;
}
