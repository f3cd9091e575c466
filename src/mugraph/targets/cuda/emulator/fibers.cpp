#include "fibers.h"

#include <sys/mman.h>

#include <cstdint>
#include <new>

#ifndef __x86_64__
#include <ucontext.h>
#endif

namespace emulation {
namespace {

unsigned char *stacks()
{
    static unsigned char *const memory = [] {
        void *const pages = mmap(nullptr, kStackBytes * kMaxThreads, PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (pages == MAP_FAILED)
            throw std::bad_alloc();
        return static_cast<unsigned char *>(pages);
    }();
    return memory;
}

#ifdef __x86_64__
void *contexts[kMaxThreads + 1];
#else
ucontext_t contexts[kMaxThreads + 1];
#endif

} // namespace

void release_stacks() { madvise(stacks(), kStackBytes * kMaxThreads, MADV_DONTNEED); }

bool on_fiber_stack(const void *address)
{
    return static_cast<std::size_t>(static_cast<const unsigned char *>(address) - stacks()) < kStackBytes * kMaxThreads;
}

#ifdef __x86_64__

/* Saves what the System V calling convention lets a function rely on across a call; everything else the compiler has
   saved around the call itself. About 20 times faster than swapcontext, which also asks the kernel for signal masks. */
extern "C" void emulation_switch(void **save, void *resume) __attribute__((visibility("hidden")));
asm(R"(
.text
.type emulation_switch, @function
.hidden emulation_switch
emulation_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size emulation_switch, .-emulation_switch
)");

void prepare_fiber(int number, void (*entry)())
{
    /* Six saved registers, the address `ret` takes, and one word that leaves the stack aligned as after a call. */
    auto *const top = reinterpret_cast<void **>(stacks() + kStackBytes * (number + 1));
    void **const frame = top - 8;
    for (int word = 0; word < 8; ++word)
        frame[word] = nullptr;
    frame[6] = reinterpret_cast<void *>(entry);
    contexts[number] = frame;
}

void switch_fiber(int from, int to) { emulation_switch(&contexts[from], contexts[to]); }

#else

void prepare_fiber(int number, void (*entry)())
{
    ucontext_t &context = contexts[number];
    getcontext(&context);
    context.uc_stack.ss_sp = stacks() + kStackBytes * number;
    context.uc_stack.ss_size = kStackBytes;
    context.uc_link = nullptr;
    makecontext(&context, entry, 0);
}

void switch_fiber(int from, int to) { swapcontext(&contexts[from], &contexts[to]); }

#endif

} // namespace emulation
