//! Records in memory: a mapping array of one word per vertex, and slots of one record each. It answers; it never reads.
//!
//! The mapping array's words (a hybrid pointer: vertex ids are dense, so no hash table is needed):
//!
//!     0xffffffff            not cached
//!     1 + tag (31 bits)     in flight: somebody, known by `tag`, is reading it
//!     0 + slot (31 bits)    in that slot
//!
//! A slot's states, one word with the number of its pins, moved by compare-and-swap:
//!
//!     Free ──take──► Locked ──publish──► Occupied ──hand──► Marked ──hand──► Locked ──► Free, or the next record
//!                                            ▲                 │
//!                                            └──────hit────────┘
//!
//! - Free: on the free list. Locked: one thread owns slot and contents. Occupied, Marked: readable; only a slot without
//!   pins becomes Locked again, so the bytes behind a pin stay what they are until it is released.
//! - While a vertex's word names a slot, only the owner of that slot (Locked) may change the word. Filling writes the
//!   word before it unlocks, evicting clears it before it gives the slot away: a word never outlives its record by more
//!   than a moment, and a reader that comes in that moment sees Locked, or pins another vertex's record, notices by the
//!   slot's `vertex`, lets go and looks again.
//! - Nothing blocks, and no list of waiters exists: a query that finds its record in flight under a tag of its own worker
//!   attaches itself to that read, which needs no synchronisation; under another worker's tag it reads for itself, so it
//!   never waits for a thread that may be descheduled. Such a doubled read costs one read; `try_insert` keeps the first.
//! - Nothing is allocated after `init`.
const std = @import("std");
const base = @import("base");
const Stats = @import("stats.zig").Stats;
const Counters = @import("stats.zig").Counters;
const assert = std.debug.assert;
const Atomic = std.atomic.Value;

pub const Policy = enum(u32) {
    /// Clock with a second chance.
    clock = 0,
    /// The least recently used of `lru_sample` slots; exact where there are no more than that.
    lru = 1,
    /// In the order of insertion, but for slots that were pinned when their turn came.
    fifo = 2,
    random = 3,
    /// What came first stays.
    static = 4,
};

/// Whether an insertion may make room for itself.
pub const Room = enum { free_only, evict };

pub const Options = struct {
    vertex_count: u32,
    /// For mapping, slots and their states together. Too small for one slot: every lookup misses, and nothing is used.
    budget_bytes: usize,
    /// The longest record that is kept; longer ones are never cached.
    slot_bytes: u32,
    policy: Policy = .clock,
    seed: u64 = 0,
};

/// Who reads a record: the caller's own number, given back by `lookup` to others that want the same record.
pub const Tag = u31;
/// Not for callers: an insertion of the moment.
const tag_inserting: Tag = std.math.maxInt(Tag) - 1;
pub const tag_max: Tag = tag_inserting - 1;

/// A record that stays in place until `release`.
pub const Pin = struct {
    start: [*]const u8,
    length: u32,
    slot: u32,

    pub fn bytes(pin: Pin) []const u8 {
        return pin.start[0..pin.length];
    }
};

/// The right, and the duty, to end a miss with `fill` or `abandon`.
pub const Reservation = struct {
    vertex: u32,
    /// False where the cache could not note the read (no slots, or the record was about to come or go): then `fill`
    /// keeps nothing, and the caller need not treat it otherwise.
    noted: bool,
};

pub const Lookup = union(enum) {
    hit: Pin,
    in_flight: Tag,
    miss: Reservation,
};

const State = enum(u2) { free, locked, occupied, marked };

const Word = packed struct(u32) {
    state: State,
    pin_count: u30 = 0,
};

const Slot = struct {
    word: Atomic(u32),
    /// These two belong to the owner while Locked, and do not change while Occupied or Marked.
    vertex: u32,
    length: u32,
    /// Free: the next slot of the free list. Otherwise, for `lru`: when it was last used.
    link: Atomic(u32),
};

const absent: u32 = std.math.maxInt(u32);
const in_flight_bit: u32 = 1 << 31;
const slots_max: u32 = 1 << 30;
const no_slot: u32 = std.math.maxInt(u32);
/// Records start at multiples of this.
const slot_alignment = 16;
/// Kernels may read so far past the end of a record.
const padding_bytes = 64;
/// Slots that one eviction looks at, at most: it then gives up, the record is not kept, and the next one goes on from
/// there. Bounds the time that a query can lose here.
const steps_max = 1024;
const lru_sample = 16;
/// Times that a lookup looks again when a record was just coming or going.
const lookups_max = 4;

comptime {
    assert(@sizeOf(Slot) == 16);
    assert(absent != in_flight_bit | @as(u32, tag_inserting));
}

pub const Cache = struct {
    allocator: std.mem.Allocator,
    policy: Policy,
    seed: u64,
    /// Distance between records.
    stride: u32,
    slot_bytes: u32,
    /// Empty where there are no slots.
    mapping: []Atomic(u32),
    slots: []Slot,
    records: base.AlignedBytes,
    counters: *Counters,
    /// Head of the free list, and how often it has changed: {changes: u32, slot: u32}.
    free_head: Atomic(u64) align(std.atomic.cache_line) = .init(no_slot),
    free_count: Atomic(u32) = .init(0),
    /// The clock's hand, the order of `fifo`, the sequence of `random`.
    hand: Atomic(u32) align(std.atomic.cache_line) = .init(0),
    /// Uses so far, for `lru`.
    tick: Atomic(u32) = .init(0),

    pub fn init(allocator: std.mem.Allocator, options: Options) error{OutOfMemory}!Cache {
        assert(options.slot_bytes > 0);
        const stride = std.mem.alignForward(u32, options.slot_bytes, slot_alignment);
        const count = slots_in(options, stride);
        const counters = try allocator.create(Counters);
        errdefer allocator.destroy(counters);
        counters.* = .{};
        const mapping = try allocator.alloc(Atomic(u32), if (count == 0) 0 else options.vertex_count);
        errdefer allocator.free(mapping);
        for (mapping) |*entry| entry.* = .init(absent);
        const slots = try allocator.alloc(Slot, count);
        errdefer allocator.free(slots);
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
            .policy = options.policy,
            .seed = options.seed,
            .stride = stride,
            .slot_bytes = options.slot_bytes,
            .mapping = mapping,
            .slots = slots,
            .records = records,
            .counters = counters,
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
        cache.allocator.free(cache.slots);
        cache.allocator.free(cache.mapping);
        cache.allocator.destroy(cache.counters);
        cache.* = undefined;
    }

    fn slots_in(options: Options, stride: u32) u32 {
        // The records' memory comes in whole pages.
        const fixed = @as(usize, options.vertex_count) * @sizeOf(u32) + padding_bytes + base.memory.page_size;
        if (options.budget_bytes <= fixed) return 0;
        const fitting = (options.budget_bytes - fixed) / (stride + @sizeOf(Slot));
        return @intCast(@min(fitting, options.vertex_count, slots_max));
    }

    /// What it holds; never above the budget. (The counters, a few hundred bytes, are the caller's slack.)
    pub fn memory_bytes(cache: *const Cache) usize {
        return cache.mapping.len * @sizeOf(u32) + cache.slots.len * @sizeOf(Slot) +
            std.mem.alignForward(usize, cache.records.bytes.len, base.memory.page_size);
    }

    pub fn slot_count(cache: *const Cache) u32 {
        return @intCast(cache.slots.len);
    }

    pub fn stats(cache: *const Cache) Stats {
        return cache.counters.sum();
    }

    /// Whether a lookup would probably hit: for choosing what to do first. Changes nothing, pins nothing.
    pub fn contains(cache: *const Cache, vertex: u32) bool {
        if (cache.mapping.len == 0) return false;
        return cache.mapping[vertex].load(.monotonic) & in_flight_bit == 0;
    }

    /// A miss makes the caller the reader of this record: others find `tag` until it calls `fill` or `abandon`.
    pub fn lookup(cache: *Cache, vertex: u32, tag: Tag) Lookup {
        assert(tag <= tag_max);
        if (cache.mapping.len > 0) {
            const entry = &cache.mapping[vertex];
            for (0..lookups_max) |_| {
                const word = entry.load(.acquire);
                if (word == absent) {
                    if (entry.cmpxchgStrong(absent, in_flight_bit | @as(u32, tag), .acq_rel, .monotonic) != null) continue;
                    cache.counters.add(.misses);
                    return .{ .miss = .{ .vertex = vertex, .noted = true } };
                }
                if (word & in_flight_bit != 0) {
                    const other: Tag = @intCast(word & ~in_flight_bit);
                    if (other == tag_inserting) break; // over in a moment, but not to be waited for
                    cache.counters.add(.in_flight);
                    return .{ .in_flight = other };
                }
                if (cache.pin(word, vertex)) |held| {
                    cache.counters.add(.hits);
                    return .{ .hit = held };
                }
            }
        }
        cache.counters.add(.misses);
        return .{ .miss = .{ .vertex = vertex, .noted = false } };
    }

    /// The record if it is there; no reservation otherwise.
    pub fn peek(cache: *Cache, vertex: u32) ?Pin {
        if (cache.mapping.len == 0) return null;
        const word = cache.mapping[vertex].load(.acquire);
        if (word & in_flight_bit != 0) return null;
        const held = cache.pin(word, vertex) orelse return null;
        cache.counters.add(.hits);
        return held;
    }

    /// The read that a miss asked for has brought `bytes`: kept, if a slot can be had, and then pinned.
    pub fn fill(cache: *Cache, reservation: Reservation, bytes: []const u8) ?Pin {
        if (!reservation.noted) return null;
        const slot_index = cache.store(reservation.vertex, bytes, .evict, .{ .state = .occupied, .pin_count = 1 }) orelse return null;
        return cache.pin_of(slot_index);
    }

    /// The read failed, or is not wanted any more.
    pub fn abandon(cache: *Cache, reservation: Reservation) void {
        if (reservation.noted) cache.mapping[reservation.vertex].store(absent, .release);
    }

    /// Keeps a record that nobody reserved, such as one that a page brought along. False where it is there already, or
    /// being read by somebody, or there is no room. It has no second chance before its first hit.
    pub fn try_insert(cache: *Cache, vertex: u32, bytes: []const u8, room: Room) bool {
        if (cache.mapping.len == 0) return false;
        const entry = &cache.mapping[vertex];
        if (entry.load(.monotonic) != absent) return false;
        if (room == .free_only and cache.free_count.load(.monotonic) == 0) return false;
        if (entry.cmpxchgStrong(absent, in_flight_bit | @as(u32, tag_inserting), .acq_rel, .monotonic) != null) return false;
        return cache.store(vertex, bytes, room, .{ .state = .marked }) != null;
    }

    pub fn release(cache: *Cache, held: Pin) void {
        const before: Word = @bitCast(cache.slots[held.slot].word.fetchSub(@bitCast(Word{ .state = .free, .pin_count = 1 }), .release));
        assert(before.pin_count > 0);
        assert(before.state == .occupied or before.state == .marked);
    }

    /// Evicts until `ahead` slots are free, so that fills need not look for one. Returns how many it evicted.
    pub fn sweep(cache: *Cache, ahead: u32) u32 {
        var evicted: u32 = 0;
        const wanted = @min(ahead, cache.slots.len);
        while (cache.free_count.load(.monotonic) < wanted) : (evicted += 1) {
            const slot_index = cache.evict() orelse break;
            cache.push_free(slot_index);
        }
        return evicted;
    }

    /// Pre: `vertex`'s word is in flight, by the caller. Post: it names a slot that holds `bytes`, or is absent.
    fn store(cache: *Cache, vertex: u32, bytes: []const u8, room: Room, word: Word) ?u32 {
        const entry = &cache.mapping[vertex];
        const slot_index = cache.take(bytes.len, room) orelse {
            entry.store(absent, .release);
            cache.counters.add(.refused);
            return null;
        };
        const slot = &cache.slots[slot_index];
        slot.vertex = vertex;
        slot.length = @intCast(bytes.len);
        @memcpy(cache.records.bytes[@as(usize, slot_index) * cache.stride ..][0..bytes.len], bytes);
        if (cache.policy == .lru) slot.link.store(cache.tick.fetchAdd(1, .monotonic), .monotonic);
        entry.store(slot_index, .release); // before the slot unlocks: see the invariants above
        slot.word.store(@bitCast(word), .release);
        cache.counters.add(.inserts);
        return slot_index;
    }

    fn take(cache: *Cache, length: usize, room: Room) ?u32 {
        if (length > cache.slot_bytes) return null;
        if (cache.pop_free()) |slot_index| return slot_index;
        return if (room == .evict) cache.evict() else null;
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
                if (cache.policy == .lru) slot.link.store(cache.tick.fetchAdd(1, .monotonic), .monotonic);
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

    // Eviction. Each way ends with a slot that is Locked by this thread and named by no vertex.

    fn evict(cache: *Cache) ?u32 {
        const slot_index = switch (cache.policy) {
            .clock => cache.find_by_hand(.second_chance),
            .fifo => cache.find_by_hand(.none),
            .random => cache.find_random(),
            .lru => cache.find_oldest(),
            .static => null,
        } orelse return null;
        cache.mapping[cache.slots[slot_index].vertex].store(absent, .release);
        cache.counters.add(.evictions);
        return slot_index;
    }

    fn find_by_hand(cache: *Cache, chance: enum { none, second_chance }) ?u32 {
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
                    if (chance == .none) {
                        if (cache.lock(slot_index)) return slot_index;
                    } else {
                        const marked: Word = .{ .state = .marked };
                        _ = slot.word.cmpxchgStrong(@bitCast(current), @bitCast(marked), .monotonic, .monotonic);
                    }
                },
                .marked => if (cache.lock(slot_index)) return slot_index,
            }
        }
        return null;
    }

    fn find_random(cache: *Cache) ?u32 {
        const count = cache.slot_count();
        var mix = std.Random.SplitMix64.init(cache.seed +% cache.hand.fetchAdd(1, .monotonic));
        const start: u32 = @intCast((@as(u128, mix.next()) * count) >> 64);
        for (0..@min(count, steps_max)) |i| {
            const slot_index: u32 = @intCast((start + i) % count);
            if (cache.lock(slot_index)) return slot_index;
        }
        return null;
    }

    fn find_oldest(cache: *Cache) ?u32 {
        const count = cache.slot_count();
        // The oldest may be taken, or pinned, by another thread meanwhile: then choose again, a few times.
        for (0..4) |_| {
            var mix = std.Random.SplitMix64.init(cache.seed +% cache.hand.fetchAdd(1, .monotonic));
            const now = cache.tick.load(.monotonic);
            var oldest: ?u32 = null;
            var oldest_age: u32 = 0;
            for (0..@min(count, lru_sample)) |i| {
                const slot_index: u32 = if (count <= lru_sample) @intCast(i) else @intCast((@as(u128, mix.next()) * count) >> 64);
                const slot = &cache.slots[slot_index];
                const current: Word = @bitCast(slot.word.load(.monotonic));
                if (current.pin_count > 0 or current.state == .free or current.state == .locked) continue;
                const age = now -% slot.link.load(.monotonic);
                if (oldest == null or age > oldest_age) {
                    oldest = slot_index;
                    oldest_age = age;
                }
            }
            if (cache.lock(oldest orelse return null)) return oldest;
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

    const Head = packed struct(u64) { slot: u32, changes: u32 };

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

    /// Slow: counts every slot and checks that mapping and slots agree. Only while no other thread uses the cache.
    pub fn verify(cache: *Cache) void {
        var free: u32 = 0;
        for (cache.slots, 0..) |*slot, i| switch (@as(Word, @bitCast(slot.word.load(.acquire))).state) {
            .free => free += 1,
            .locked => unreachable,
            .occupied, .marked => assert(cache.mapping[slot.vertex].load(.acquire) == i),
        };
        assert(free == cache.free_count.load(.acquire));
        var on_list: u32 = 0;
        var next = @as(Head, @bitCast(cache.free_head.load(.acquire))).slot;
        while (next != no_slot) : (next = cache.slots[next].link.load(.acquire)) on_list += 1;
        assert(on_list == free);
        var named: u32 = 0;
        for (cache.mapping, 0..) |*entry, vertex| {
            const word = entry.load(.acquire);
            if (word & in_flight_bit != 0) continue;
            assert(cache.slots[word].vertex == vertex);
            named += 1;
        }
        assert(named + free == cache.slots.len);
    }
};

comptime {
    // A release must not borrow into the state's bits.
    assert(@as(u32, @bitCast(Word{ .state = .free, .pin_count = 1 })) == 4);
}
