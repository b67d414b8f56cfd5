/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Events of chosen processes, in order, through a ring. See src/bpf/watched.rs. */
#ifndef AGEWISE_WATCHED_H
#define AGEWISE_WATCHED_H

/* Its size is set on loading. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} ring SEC(".maps");

/* By tgid. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, u32);
	__type(value, u32);
} watched SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u64);
} dropped SEC(".maps");

/* Reserves space for an event; 0 if the ring is full, which is counted. */
static __always_inline void *new_event(u64 bytes)
{
	void *event = bpf_ringbuf_reserve(&ring, bytes, 0);

	if (!event) {
		u32 zero = 0;
		u64 *count = bpf_map_lookup_elem(&dropped, &zero);

		if (count)
			__sync_fetch_and_add(count, 1);
	}
	return event;
}

#endif
