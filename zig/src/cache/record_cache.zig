//! Records in memory: a mapping array of one word per vertex, and slots of one record each. It answers; it never reads.
//!
//! A word of the mapping array (vertex ids are dense, so no hash table is needed) is the slot of the vertex's record, or
//! says that none exists, or that one is being read.
//!
//! A slot's states, one word with the number of its pins, moved by compare-and-swap:
//!
//!     Free ──take──► Locked ──store──► Marked ──hand──► Locked ──► Free, or the next record
//!                                       │  ▲
//!                                    hit▼  │hand
//!                                     Occupied
//!
//! - Free: on the free list. Locked: one thread owns slot and contents. Occupied, Marked: readable; only a slot without
//!   pins becomes Locked again, so the bytes behind a pin stay what they are until it is released.
//! - While a vertex's word names a slot, only the owner of that slot (Locked) may change the word. Storing writes the
//!   word before it unlocks, evicting clears it before it gives the slot away: a word never outlives its record by more
//!   than a moment, and a reader that comes in that moment sees Locked, or pins another vertex's record, notices by the
//!   slot's `vertex`, lets go and has a miss.
//! - Nothing blocks: who finds a record coming has a miss. Two that insert the same record at once: the first wins.
//! - Nothing is allocated after `init`.
const std = @import("std");
const base = @import("base");
const assert = std.debug.assert;
const Atomic = std.atomic.Value;

pub const Options = struct {
    vertex_count: u32,
    /// For mapping, slots and their states together. Too small for one slot: every look misses, and nothing is used.
    budget_bytes: usize,
    /// The longest record that is kept; longer ones are never cached.
    slot_bytes: u32,
};

/// A record that stays in place until `release`.
pub const Pin = struct {
    start: [*]const u8,
    length: u32,
    slot: u32,

    pub fn bytes(pin: Pin) []const u8 {
        return pin.start[0..pin.length];
    }
};

pub const State = enum(u2) { free, locked, occupied, marked };

pub const Word = packed struct(u32) {
    state: State,
    pin_count: u30 = 0,
};

pub const Slot = struct {
    word: Atomic(u32),
    /// These two belong to the owner while Locked, and do not change while Occupied or Marked.
    vertex: u32,
    length: u32,
    /// Free: the next slot of the free list.
    link: Atomic(u32),
};

/// Words of vertices without a slot.
pub const absent: u32 = std.math.maxInt(u32);
const coming: u32 = absent - 1;
const slots_max: u32 = 1 << 30;
pub const no_slot: u32 = std.math.maxInt(u32);
/// Records start at multiples of this.
const slot_alignment = 16;
/// Kernels may read so far past the end of a record.
const padding_bytes = 64;
/// Slots that one eviction looks at, at most: it then gives up, the record is not kept, and the next one goes on from
/// there. Bounds the time that a query can lose here.
const steps_max = 1024;
comptime {
    assert(@sizeOf(Slot) == 16);
    assert(slots_max < coming);
}

/// The number of slots of a cache with these options.
pub fn slots_in(options: Options) u32 {
    const stride = std.mem.alignForward(u32, options.slot_bytes, slot_alignment);
    // The records' memory comes in whole pages.
    const fixed = @as(usize, options.vertex_count) * @sizeOf(u32) + padding_bytes + base.memory.page_size;
    if (options.budget_bytes <= fixed) return 0;
    const fitting = (options.budget_bytes - fixed) / (stride + @sizeOf(Slot));
    return @intCast(@min(fitting, options.vertex_count, slots_max));
}

/// An upper bound of the size of a cache with a slot for every record.
pub fn bytes_of(options: Options) u64 {
    const stride = std.mem.alignForward(u32, options.slot_bytes, slot_alignment);
    return @as(u64, options.vertex_count) * (stride + @sizeOf(Slot) + @sizeOf(u32)) + padding_bytes + base.memory.page_size;
}

pub const Cache = struct {
    allocator: std.mem.Allocator,
    /// The slot that the next eviction looks at first.
    hand: Atomic(u32) align(std.atomic.cache_line) = .init(0),
    /// Distance between records.
    stride: u32,
    slot_bytes: u32,
    /// Empty where there are no slots.
    mapping: []Atomic(u32),
    slots: []Slot,
    records: base.AlignedBytes,
    /// Head of the free list, and how often it has changed: {changes: u32, slot: u32}.
    free_head: Atomic(u64) align(std.atomic.cache_line) = .init(no_slot),
    free_count: Atomic(u32) = .init(0),

    pub fn init(allocator: std.mem.Allocator, options: Options) error{OutOfMemory}!Cache {
        assert(options.slot_bytes > 0);
        const stride = std.mem.alignForward(u32, options.slot_bytes, slot_alignment);
        const count = slots_in(options);
        const mapping = try base.alloc_untouched(allocator, Atomic(u32), if (count == 0) 0 else options.vertex_count);
        errdefer base.free_untouched(allocator, mapping);
        for (mapping) |*entry| entry.* = .init(absent);
        const slots = try base.alloc_untouched(allocator, Slot, count);
        errdefer base.free_untouched(allocator, slots);
        var records: base.AlignedBytes = .empty;
        if (count > 0) records = try .alloc(@as(usize, count) * stride + padding_bytes, .{ .huge_pages = true });
        for (slots, 0..) |*slot, i| slot.* = .{
            .word = .init(@bitCast(Word{ .state = .free })),
            .vertex = absent,
            .length = 0,
            .link = .init(if (i + 1 == count) no_slot else @intCast(i + 1)),
        };
        return .{
            .allocator = allocator,
            .stride = stride,
            .slot_bytes = options.slot_bytes,
            .mapping = mapping,
            .slots = slots,
            .records = records,
            .free_head = .init(if (count == 0) no_slot else 0),
            .free_count = .init(count),
        };
    }

    /// No pin may be left.
    pub fn deinit(cache: *Cache) void {
        if (std.debug.runtime_safety) for (cache.slots) |*slot| {
            assert(@as(Word, @bitCast(slot.word.load(.acquire))).pin_count == 0);
        };
        cache.records.free();
        base.free_untouched(cache.allocator, cache.slots);
        base.free_untouched(cache.allocator, cache.mapping);
        cache.* = undefined;
    }

    /// Bytes that it holds; never above the budget.
    pub fn memory_bytes(cache: *const Cache) usize {
        return cache.mapping.len * @sizeOf(u32) + cache.slots.len * @sizeOf(Slot) +
            std.mem.alignForward(usize, cache.records.bytes.len, base.memory.page_size);
    }

    pub fn slot_count(cache: *const Cache) u32 {
        return @intCast(cache.slots.len);
    }

    /// Whether a look would probably hit: for choosing what to do first. Changes nothing, pins nothing.
    pub fn contains(cache: *const Cache, vertex: u32) bool {
        if (cache.mapping.len == 0) return false;
        return cache.mapping[vertex].load(.monotonic) < coming;
    }

    /// Whether every record has a slot of its own, so that none is ever evicted.
    pub fn holds_all(cache: *const Cache) bool {
        return cache.slots.len == cache.mapping.len and cache.slots.len > 0;
    }

    /// Evicts this record; false where it is pinned, not there or just changing.
    pub fn try_evict(cache: *Cache, vertex: u32) bool {
        const slot_index = cache.mapping[vertex].load(.acquire);
        if (slot_index >= coming or !cache.lock(slot_index)) return false;
        const slot = &cache.slots[slot_index];
        if (slot.vertex != vertex) { // the slot changed hands since the mapping was read
            slot.word.store(@bitCast(Word{ .state = .marked }), .release);
            return false;
        }
        cache.mapping[vertex].store(absent, .release);
        cache.push_free(slot_index);
        return true;
    }

    /// The record if it is there, without a pin: only where nothing is ever evicted.
    pub inline fn look(cache: *const Cache, vertex: u32) ?[]const u8 {
        const slot_index = cache.mapping[vertex].load(.acquire);
        return if (slot_index < coming) cache.pin_of(slot_index).bytes() else null;
    }

    /// The record if it is there.
    pub fn peek(cache: *Cache, vertex: u32) ?Pin {
        if (cache.mapping.len == 0) return null;
        const word = cache.mapping[vertex].load(.acquire);
        return if (word < coming) cache.pin(word, vertex) else null;
    }

    /// Keeps a record that a page brought, in the place of another if need be. False where it is there already, or just
    /// coming, or there is no room. It has no second chance before its first hit.
    pub fn try_insert(cache: *Cache, vertex: u32, bytes: []const u8) bool {
        if (cache.mapping.len == 0 or bytes.len > cache.slot_bytes) return false;
        const entry = &cache.mapping[vertex];
        if (entry.load(.monotonic) != absent) return false;
        if (entry.cmpxchgStrong(absent, coming, .acq_rel, .monotonic) != null) return false;
        const slot_index = cache.pop_free() orelse cache.evict() orelse {
            entry.store(absent, .release);
            return false;
        };
        const slot = &cache.slots[slot_index];
        slot.vertex = vertex;
        slot.length = @intCast(bytes.len);
        @memcpy(cache.records.bytes[@as(usize, slot_index) * cache.stride ..][0..bytes.len], bytes);
        entry.store(slot_index, .release); // before the slot unlocks: see the invariants above
        slot.word.store(@bitCast(Word{ .state = .marked }), .release);
        return true;
    }

    pub fn release(cache: *Cache, held: Pin) void {
        const before: Word = @bitCast(cache.slots[held.slot].word.fetchSub(@bitCast(Word{ .state = .free, .pin_count = 1 }), .release));
        assert(before.pin_count > 0);
        assert(before.state == .occupied or before.state == .marked);
    }

    /// Evicts until `ahead` slots are free, so that insertions need not look for one. Returns how many it evicted.
    pub fn sweep(cache: *Cache, ahead: u32) u32 {
        var evicted: u32 = 0;
        const wanted = @min(ahead, cache.slots.len);
        while (cache.free_count.load(.monotonic) < wanted) : (evicted += 1) {
            const slot_index = cache.evict() orelse break;
            cache.push_free(slot_index);
        }
        return evicted;
    }

    fn pin(cache: *Cache, slot_index: u32, vertex: u32) ?Pin {
        const slot = &cache.slots[slot_index];
        var current: Word = @bitCast(slot.word.load(.monotonic));
        while (current.state == .occupied or current.state == .marked) {
            const pinned: Word = .{ .state = .occupied, .pin_count = current.pin_count + 1 };
            current = @bitCast(slot.word.cmpxchgWeak(@bitCast(current), @bitCast(pinned), .acquire, .monotonic) orelse {
                const held = cache.pin_of(slot_index);
                if (slot.vertex != vertex) { // the slot changed hands since the mapping was read
                    cache.release(held);
                    return null;
                }
                return held;
            });
        }
        return null;
    }

    /// Pre: pinned.
    fn pin_of(cache: *const Cache, slot_index: u32) Pin {
        return .{
            .start = cache.records.bytes.ptr + @as(usize, slot_index) * cache.stride,
            .length = cache.slots[slot_index].length,
            .slot = slot_index,
        };
    }

    /// A slot that is Locked by this thread and named by no vertex.
    fn evict(cache: *Cache) ?u32 {
        const slot_index = cache.find_victim() orelse return null;
        cache.mapping[cache.slots[slot_index].vertex].store(absent, .release);
        return slot_index;
    }

    /// A slot that held a record and is Locked by this thread now: clock with a second chance.
    fn find_victim(cache: *Cache) ?u32 {
        const count = cache.slot_count();
        // Two turns: one to mark, one to take.
        for (0..@min(2 * @as(u64, count) + 1, steps_max)) |_| {
            const slot_index = cache.hand.fetchAdd(1, .monotonic) % count;
            const slot = &cache.slots[slot_index];
            const current: Word = @bitCast(slot.word.load(.monotonic));
            if (current.pin_count > 0) continue;
            switch (current.state) {
                .free, .locked => {},
                .occupied => {
                    const marked: Word = .{ .state = .marked };
                    _ = slot.word.cmpxchgStrong(@bitCast(current), @bitCast(marked), .monotonic, .monotonic);
                },
                .marked => if (cache.lock(slot_index)) return slot_index,
            }
        }
        return null;
    }

    /// From readable and without pins to Locked.
    fn lock(cache: *Cache, slot_index: u32) bool {
        const slot = &cache.slots[slot_index];
        const current: Word = @bitCast(slot.word.load(.monotonic));
        if (current.pin_count > 0 or current.state == .free or current.state == .locked) return false;
        const locked: Word = .{ .state = .locked };
        // Acquire: what readers did behind pins that are released now happened before the slot's next record.
        return slot.word.cmpxchgStrong(@bitCast(current), @bitCast(locked), .acquire, .monotonic) == null;
    }

    // The free list: a stack of slots. The count of changes in its head makes a head that came back look different.

    pub const Head = packed struct(u64) { slot: u32, changes: u32 };

    fn pop_free(cache: *Cache) ?u32 {
        var head: Head = @bitCast(cache.free_head.load(.acquire));
        while (head.slot != no_slot) {
            const next: Head = .{ .slot = cache.slots[head.slot].link.load(.monotonic), .changes = head.changes +% 1 };
            head = @bitCast(cache.free_head.cmpxchgWeak(@bitCast(head), @bitCast(next), .acquire, .acquire) orelse {
                _ = cache.free_count.fetchSub(1, .monotonic);
                cache.slots[head.slot].word.store(@bitCast(Word{ .state = .locked }), .monotonic);
                return head.slot;
            });
        }
        return null;
    }

    /// Pre: Locked by this thread.
    fn push_free(cache: *Cache, slot_index: u32) void {
        const slot = &cache.slots[slot_index];
        slot.word.store(@bitCast(Word{ .state = .free }), .monotonic);
        _ = cache.free_count.fetchAdd(1, .monotonic); // before it can be popped, so that the count stays above zero
        var head: Head = @bitCast(cache.free_head.load(.monotonic));
        while (true) {
            slot.link.store(head.slot, .monotonic);
            const next: Head = .{ .slot = slot_index, .changes = head.changes +% 1 };
            head = @bitCast(cache.free_head.cmpxchgWeak(@bitCast(head), @bitCast(next), .release, .monotonic) orelse return);
        }
    }
};

comptime {
    // A release must not borrow into the state's bits.
    assert(@as(u32, @bitCast(Word{ .state = .free, .pin_count = 1 })) == 4);
}
