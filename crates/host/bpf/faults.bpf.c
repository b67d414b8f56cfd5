// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Reports the addresses at which chosen processes fault, in order. Only observes.
 *
 * Uses two tracepoints of arch/x86/mm/fault.c (exc_page_fault): faults taken in user mode, and
 * those the kernel takes for the process while it copies from or to its memory. They fire before
 * the fault is handled, so major faults are reported afterwards, from the kernel's count of these
 * (the software event PERF_COUNT_SW_PAGE_FAULTS_MAJ, in mm_account_fault of mm/memory.c).
 */
#include <linux/types.h>
#include <linux/bpf.h>
#include <linux/bpf_perf_event.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

typedef __u64 u64;
typedef __u32 u32;

#include "watched.h"

/* Must match src/faults/program.rs. */
struct fault_event {
	u64 time_ns; /* CLOCK_MONOTONIC */
	u64 address; /* of the page; the low bits are those of the hardware's error code */
	u32 tgid;
	u32 tid;
};

#define PAGE_MASK_BITS 0xfffULL
#define CODE_BITS 0x1fULL /* present, write, user, reserved, instruction */
#define CODE_MAJOR 0x20ULL /* our own: the thread's earlier fault at this page was major */

static __always_inline int note(u64 address, u64 code)
{
	u64 id = bpf_get_current_pid_tgid();
	u32 tgid = id >> 32;
	struct fault_event *event;

	/* The upper half of the address space is the kernel's. */
	if ((long long)address < 0 || !bpf_map_lookup_elem(&watched, &tgid))
		return 0;
	event = new_event(sizeof(*event));
	if (!event)
		return 0;
	event->time_ns = bpf_ktime_get_ns();
	event->address = (address & ~PAGE_MASK_BITS) | code;
	event->tgid = tgid;
	event->tid = (u32)id;
	/* No wakeup: the reader polls once per interval. */
	bpf_ringbuf_submit(event, BPF_RB_NO_WAKEUP);
	return 0;
}

SEC("tp_btf/page_fault_user")
int BPF_PROG(fault_user, unsigned long address, void *regs, unsigned long code)
{
	return note(address, code & CODE_BITS);
}

SEC("tp_btf/page_fault_kernel")
int BPF_PROG(fault_kernel, unsigned long address, void *regs, unsigned long code)
{
	return note(address, code & CODE_BITS);
}

SEC("perf_event")
int fault_major(struct bpf_perf_event_data *ctx)
{
	return note(ctx->addr, CODE_MAJOR);
}

/* bpf_ktime_get_ns is only available to GPL-compatible programs. */
char _license[] SEC("license") = "Dual BSD/GPL";
